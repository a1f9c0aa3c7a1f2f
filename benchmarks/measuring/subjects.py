"""Make the models that are timed, and bring batches of requests to where one kind of pass, or decoding, can be timed.

Knows how to make models of random weights and how to fill a cache with noise, so that a long one needs no prefill.
"""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.cache_utils import DynamicCache

from measuring.hardware import DEVICE
from measuring.static_batch import StaticBatch, static_batch
from setblock.data.tokenizer import train_tokenizer
from setblock.decoding.samplers import BlockView, EntropyBounded, Selection
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step.inputs import next_schedules, plan_pass, prepare_inputs
from setblock.decoding.step.logits import read_logits
from setblock.masks import decode_mask
from setblock.model.attention.attention import mask_form
from setblock.model.attention.grouped import GroupedAttention
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock.model.runners.forward import PaddedRunner, SlotCache, logits_at
from setblock.model.sbd_model import SBDModel
from setblock.roofline.shape import CONFIGS, shape_of

PassKind = Literal["one token", "block", "fused"]


def _llama(hidden: int, layers: int, vocabulary: int = 32_000) -> dict[str, Any]:
    heads = hidden // 64
    return {
        "model_type": "llama",
        "hidden_size": hidden,
        "num_hidden_layers": layers,
        "intermediate_size": hidden * 11 // 4,
        "num_attention_heads": heads,
        "num_key_value_heads": heads // 2 if heads % 2 == 0 else heads,
        "vocab_size": vocabulary,
        "tie_word_embeddings": True,
    }


SIZES: dict[str, dict[str, Any]] = {
    "tiny": _llama(64, 2, 768),
    "100m": _llama(768, 11),
    "135m": _llama(576, 30, 49_152) | {"intermediate_size": 1536, "num_key_value_heads": 3},
    "400m": _llama(1280, 20),
    "1b": _llama(2048, 20),
    "8b": CONFIGS["llama-3.1-8b"],
}
"""What random models there are: Llama shapes; 135m is SmolLM2-135M's own, 8b Llama-3.1-8B's."""


@dataclass(frozen=True)
class FixedCount:
    """Reveal the first `count` masked positions of each block, whatever their logits: forces the passes a block takes. What
    the entropy bound computes is computed all the same, so that a pass costs what it costs in use."""

    count: int

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        EntropyBounded().select(block)
        return Selection(block.candidates & (block.candidates.cumsum(dim=1) <= self.count))


def random_model(
    config: dict[str, Any],
    *,
    dtype: torch.dtype,
    attention: str | None = None,
    block_size: int = 16,
    context: int = 65_536,
) -> SBDModel:
    """Return a model with random weights, which never ends its answer, and blocks as the paper has them."""
    made = AutoConfig.for_model(
        **config, max_position_embeddings=context, bos_token_id=None, eos_token_id=None, pad_token_id=0
    )
    torch.manual_seed(0)
    with DEVICE:
        model = AutoModelForCausalLM.from_config(made, dtype=dtype, attn_implementation=attention).eval()
    return prepared(model, block_size=block_size)


def prepared(model: Any, *, block_size: int = 16) -> SBDModel:
    """Return a model as one that was trained for blocks, whose answers never end. Its tokenizer is never asked for
    text."""
    sbd_config = SBDModelConfig(mask_token_id=model.config.vocab_size - 1, block_sizes=(block_size,))
    sbd = SBDModel(model, train_tokenizer([], vocab_size=261), sbd_config=sbd_config)
    sbd.end_of_text_ids = ()
    return sbd


def name_tokens(sbd: SBDModel) -> None:
    """Give each token of a random model's vocabulary a text, where its answers are read as text. They have only these tokens: a
    single byte is half a character, whose text would wait for the rest."""
    if missing := range(len(sbd.tokenizer), sbd.vocab_size):
        with torch.no_grad():
            sbd.model.get_output_embeddings().weight[: missing.start] = 0.0
        sbd.tokenizer.add_tokens([f"<{token_id}>" for token_id in missing])


def compiled(sbd: SBDModel, *, backend: str = "inductor") -> SBDModel:
    """Return the same model, compiled; the one given stays as it is."""
    other = SBDModel(sbd.model, sbd.tokenizer, sbd_config=sbd.sbd_config, quantization=sbd.quantization)
    other.end_of_text_ids, other.draft_text = sbd.end_of_text_ids, sbd.draft_text
    other.compile(backend=backend)
    return other


def prepacked(sbd: SBDModel) -> SBDModel:
    """Return a copy of the model, its weights prepacked; the one given stays as it is."""
    other = SBDModel(copy.deepcopy(sbd.model), sbd.tokenizer, sbd_config=sbd.sbd_config)
    other.end_of_text_ids, other.draft_text = sbd.end_of_text_ids, sbd.draft_text
    other.prepack()
    return other


def random_prompt(sbd: SBDModel, length: int) -> list[int]:
    """Return token ids, the same for the same length."""
    generator = torch.Generator().manual_seed(0)
    most = sbd.model.config.get_text_config().vocab_size - 1
    return torch.randint(5, most, (length,), generator=generator).tolist()


def opened(
    sbd: SBDModel,
    settings: DecodingSettings,
    *,
    batch: int,
    prompt: int,
    cached: int | None = None,
    cache: SlotCache | None = None,
) -> StaticBatch:
    """Return `batch` equal requests whose first `cached` positions are in the cache already, as noise. All but the
    prompt's last by default: what the loop then takes for its prefill is a pass over one token.

    Args:
        cache: a `noisy_cache` to use, which others may use in turns: what is before `cached` in it is only read.
    """
    compiled, sbd.compiled = sbd.compiled, None  # its passes have other runners
    opened = static_batch(sbd, [random_prompt(sbd, prompt)] * batch, [settings] * batch)
    sbd.compiled = compiled
    cached = prompt - 1 if cached is None else cached
    assert isinstance(opened.runner, PaddedRunner)
    opened.runner.cache = cache or noisy_cache(sbd, batch=batch, cached=cached, capacity=opened.runner.cache.capacity)
    opened.state.hold(cached)
    opened.next_schedules = None  # no longer the whole prompt
    return opened


@torch.inference_mode()
def noisy_cache(sbd: SBDModel, *, batch: int, cached: int, capacity: int) -> SlotCache:
    """Return a cache with noise in its first `cached` positions, the same for every capacity."""
    cache = SlotCache(
        layers=sbd.model.config.get_text_config().num_hidden_layers, batch=batch, capacity=capacity, device=sbd.device
    )
    first = _noise(sbd, 0, batch=batch, length=1)
    for index, layer in enumerate(cache.layers):
        layer.lazy_initialization(first, first)
        states = _noise(sbd, index, batch=batch, length=cached)
        layer.keys[:, :, :cached] = states
        layer.values[:, :, :cached] = states
    return cache


def dynamic_cache(sbd: SBDModel, *, batch: int, cached: int) -> DynamicCache:
    """Return Transformers' default cache with that much noise in it."""
    cache = DynamicCache(config=sbd.model.config)
    if cached:
        for layer in range(sbd.model.config.get_text_config().num_hidden_layers):
            states = _noise(sbd, layer, batch=batch, length=cached)
            cache.update(states, states.clone(), layer)
    return cache


def _noise(sbd: SBDModel, seed: int, *, batch: int, length: int) -> Tensor:
    """Return keys or values [B, H, length, D]."""
    shape = shape_of(sbd.model.config)
    generator = torch.Generator(device=sbd.device).manual_seed(seed)
    sizes = (batch, shape.kv_heads, length, shape.head_dim)
    return torch.randn(sizes, generator=generator, dtype=sbd.model.dtype, device=sbd.device)


def passes(
    sbd: SBDModel,
    kind: PassKind,
    *,
    block_size: int,
    kv_length: int,
    batch: int = 1,
    cache: SlotCache | None = None,
) -> dict[str, Callable[[], Tensor]]:
    """Return one kind of pass over `kv_length` cached positions of each of `batch` requests, ready to be run again and
    again.

    Args:
        cache: as in `opened`.

    Returns:
        `library`: the pass as decoding plans, feeds and reads it; of a compiled model the same as `model`.
        `model`: the same forward pass of the model with inputs, mask and cache slots made beforehand, its head over the same
        outputs. Both give the logits [B, k, V].
    """
    # 1. A state whose next pass is of this kind; what it feeds causally is `pending`
    pending = {"one token": 1, "block": 0, "fused": block_size}[kind]
    block_size = 1 if kind == "one token" else block_size
    start = kv_length + pending
    settings = DecodingSettings(
        method="ntp" if kind == "one token" else "sbd", block_size=block_size, max_new_tokens=block_size
    )
    requests = opened(sbd, settings, batch=batch, prompt=start, cached=kv_length, cache=cache)
    state, runner = requests.state, requests.runner
    assert isinstance(runner, PaddedRunner)
    cache = runner.cache

    @torch.inference_mode()
    def library() -> Tensor:
        state.hold(kv_length)
        state.cache.prefill_end = state.cache.committed  # what is fed causally is a commit, not a prompt
        schedules = next_schedules(state, fuses_commit=True)
        inputs = prepare_inputs(state, plan_pass(state, schedules, runner))
        return read_logits(state, inputs, runner.logits(inputs)).block.logits

    # 2. The same inputs, made once
    library()  # leaves the cache's slots set for this pass
    fed = start if kind == "one token" else start + block_size
    positions = torch.arange(kv_length, fed, device=sbd.device).expand(batch, -1)  # [B, Q]
    in_block = positions >= start
    limits = torch.where(in_block, fed, positions + 1)
    mask = mask_form(sbd.model, most=max(batch, fed), device=sbd.device).mask(
        lambda window: decode_mask(position_ids=positions, limits=limits, window=window),
        batch=batch,
        queries=positions.shape[1],
        keys=fed,
    )
    assert sbd.sbd_config is not None
    assert sbd.sbd_config.mask_token_id is not None  # no measured model is of UNO's form
    tokens = state.tokens[:, kv_length:fed].masked_fill(in_block, sbd.sbd_config.mask_token_id)
    places = torch.arange(positions.numel(), device=sbd.device).view(batch, -1)[:, -block_size:]
    outputs = places.flatten()
    wrapped, grouped = sbd.compiled, GroupedAttention(sbd.model)

    @torch.inference_mode()
    def model() -> Tensor:
        cache.write_to(rows=slice(0, batch), slots=positions, visible=fed)
        logits = logits_at(
            sbd.model,
            outputs,
            input_ids=tokens,
            position_ids=positions,
            attention_mask=mask,
            cache=cache,
            wrapped=wrapped,
            filled=grouped.filled,
        )
        return logits.view(batch, block_size, -1)

    return {"library": library if sbd.compiled is None else model, "model": model}
