"""Passes of a model of random weights, timed on this machine beside what the roofline predicts for it."""

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from setblock.cli.roofline_subject import Subject
from setblock.errors import ParameterError, SetBlockError
from setblock.masks import decode_mask
from setblock.model.attention import attention_mask
from setblock.model.cache import SlotCache
from setblock.model.forward import logits_at
from setblock.roofline.machine import synchronise
from setblock.roofline.prediction import Prediction

BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64)


@dataclass(frozen=True, kw_only=True)
class MeasuredPass:
    """A pass over a block of k tokens, or over one token where k is 1. Times are in seconds; quartiles are of all repeats."""

    block_size: int
    median: float
    lower_quartile: float
    upper_quartile: float
    predicted: float

    @property
    def share(self) -> float:
        """Of the predicted speed that is reached; below 1 unless something is in a cache of the chip."""
        return self.predicted / self.median


def measure_passes(
    subject: Subject, prediction: Prediction, *, batch: int, kv_length: int, repeats: int, device: torch.device
) -> list[MeasuredPass]:
    """Time the model's forward pass, its inputs and mask made beforehand, for each block size in turn, `repeats` times over.

    Raises:
        SetBlockError: the model does not fit into memory, or its positions don't reach that far.
    """
    # 1. Can it be?
    shape, memory = subject.shape, prediction.hardware.memory
    length = kv_length + max(BLOCK_SIZES)
    if shape.positions and length > shape.positions:
        raise ParameterError(f"kv_length must be at most {shape.positions - max(BLOCK_SIZES)}, not {kv_length}")
    needed = prediction.weight_memory + batch * prediction.kv_memory(length)
    if memory is not None and needed > memory:
        raise SetBlockError(
            f"model {shape.name} takes {needed / 1e9:.1f} GB and this machine has {memory / 1e9:.1f}: "
            "measure a smaller one, such as --model smollm2-135m"
        )

    # 2. The model, its cache full of noise: untouched memory would not be read
    model = _random_model(subject.config, getattr(torch, prediction.precision.activations)).to(device).eval()
    layers = model.config.get_text_config().num_hidden_layers
    cache = SlotCache(layers=layers, batch=batch, capacity=length)
    passes = {k: _pass(model, cache, batch=batch, kv_length=kv_length, tokens=k) for k in BLOCK_SIZES}
    passes[1]()
    with torch.inference_mode():
        for layer in cache.layers:
            layer.keys.normal_()
            layer.values.normal_()

    # 3. The times, interleaved, so that a machine's drift falls on all of them alike
    for run in passes.values():
        run()
    times: dict[int, list[float]] = {k: [] for k in BLOCK_SIZES}
    for _ in range(repeats):
        for k, run in passes.items():
            synchronise(device)
            started = time.perf_counter()
            run()
            synchronise(device)
            times[k].append(time.perf_counter() - started)
    return [_measured(k, times[k], prediction.seconds(k, batch=batch, kv_length=kv_length)) for k in BLOCK_SIZES]


def _measured(block_size: int, times: list[float], predicted: float) -> MeasuredPass:
    lower, median, upper = statistics.quantiles(times, n=4, method="inclusive") if len(times) > 1 else times * 3
    return MeasuredPass(
        block_size=block_size, median=median, lower_quartile=lower, upper_quartile=upper, predicted=predicted
    )


def _random_model(config: Any, dtype: torch.dtype) -> Any:
    if isinstance(config, dict):
        config = AutoConfig.for_model(**config)
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)  # which SDPA has not
    torch.manual_seed(0)
    attention = "eager" if capped else "sdpa"
    return AutoModelForCausalLM.from_config(config, dtype=dtype, attn_implementation=attention)


def _pass(model: Any, cache: SlotCache, *, batch: int, kv_length: int, tokens: int) -> Callable[[], object]:
    """A block pass over `tokens` after `kv_length` cached positions, ready to be run again and again."""
    end = kv_length + tokens
    positions = torch.arange(kv_length, end, device=model.device).expand(batch, -1)  # [B, k]
    config = model.config.get_text_config()
    mask = attention_mask(
        config,
        lambda window: decode_mask(position_ids=positions, limits=torch.full_like(positions, end), window=window),
        batch=batch,
        queries=tokens,
        keys=end,
        device=model.device,
        dtype=model.dtype,
    )
    ids = positions % config.vocab_size
    outputs = torch.arange(batch * tokens, device=model.device)

    @torch.inference_mode()
    def run() -> object:
        cache.write_to(rows=None, slots=positions, visible=end)
        return logits_at(model, outputs, input_ids=ids, position_ids=positions, attention_mask=mask, cache=cache)

    return run
