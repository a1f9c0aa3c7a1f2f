"""Every architecture of the list, as a tiny random model: what vLLM decodes is what `setblock.generate` decodes."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from in_vllm.engines import offline, passes_so_far
from setblock.decoding.samplers import EntropyPrefix
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel
from setblock_vllm.plugin import STOCK
from slot_engine import generated

# vLLM's attention on a CPU wants heads of at least 32.
SHAPE = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "LlamaForCausalLM": ("llama", SHAPE),
    "MistralForCausalLM": ("mistral", SHAPE | {"sliding_window": None}),
    "MixtralForCausalLM": ("mixtral", SHAPE),
    "Qwen2ForCausalLM": ("qwen2", SHAPE),
    "Qwen3ForCausalLM": ("qwen3", SHAPE | {"head_dim": 32}),
    "Qwen3MoeForCausalLM": ("qwen3_moe", SHAPE | {"head_dim": 32}),
}
REQUESTS: tuple[tuple[DecodingSettings, dict[str, Any]], ...] = (
    (DecodingSettings(method="sbd", sampler=EntropyPrefix(20.0)), {"method": "sbd", "gamma": 20.0}),
    (DecodingSettings(method="exact", block_size=8), {"method": "exact", "block_size": 8}),
    (DecodingSettings(method="ntp"), {"method": "ntp"}),
)


def test_every_architecture_is_tested() -> None:
    assert set(FAMILIES) == set(STOCK)


CAUSAL = "causal blocks"


@pytest.fixture(params=[*FAMILIES, CAUSAL])
def model(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    family, shape = FAMILIES.get(request.param, FAMILIES["LlamaForCausalLM"])
    # Far from flat, so that rounding decides nothing.
    sbd = tiny_sbd(family, tokenizer, mode="shifted", initializer_range=0.25, **shape)
    if request.param == CAUSAL:
        sbd.sbd_config = None
        form: dict[str, Any] = {"noise": "uniform", "causal_block": True, "logit_shift": True}
        sbd.prepare_for_training(block_sizes=range(2, 17), **form)
    return sbd


@pytest.fixture
def engine(model: SBDModel, tmp_path: Path) -> Iterator[Any]:
    model.save(tmp_path)
    made = offline(model=tmp_path, max_model_len=128)
    yield made
    made.llm_engine.engine_core.shutdown()


def test_tokens_are_those_of_generate(engine: Any, model: SBDModel, prompts: Sequence[list[int]]) -> None:
    from vllm import SamplingParams

    requested = [
        (
            prompt,
            replace(settings, max_new_tokens=48),
            SamplingParams(temperature=0.0, max_tokens=48, extra_args=dict(extra)),
        )
        for settings, extra in REQUESTS
        for prompt in prompts
    ]
    given = engine.generate(
        [{"prompt_token_ids": prompt} for prompt, *_ in requested], [params for *_, params in requested], use_tqdm=False
    )
    for (prompt, settings, _), output in zip(requested, given, strict=True):
        expected, passes = generated(model, prompt, settings)
        assert list(output.outputs[0].token_ids) == expected
        assert passes < len(expected) or settings.method != "sbd"  # several tokens at a time, commits and all


@pytest.mark.parametrize("model", [CAUSAL], indirect=True)
def test_a_causal_block_is_committed_with_the_next_one(
    engine: Any, model: SBDModel, prompts: Sequence[list[int]]
) -> None:
    """A block that was right to its end takes one pass. At such temperatures noise decides, so that many are right."""
    from vllm import SamplingParams

    fewest = 48
    for prompt, temperature in zip(prompts, (0.0, 15.0, 40.0), strict=True):
        extra = {"method": "exact", "block_size": 4, "gamma": "inf", "temperature": temperature, "seed": 2}
        settings = DecodingSettings(
            method="exact",
            block_size=4,
            sampler=EntropyPrefix(math.inf),
            temperature=temperature,
            seed=2,
            max_new_tokens=48,
        )
        expected, passes = generated(model, prompt, settings)
        before = passes_so_far(engine)
        params = SamplingParams(temperature=0.0, max_tokens=48, extra_args=extra)
        (output,) = engine.generate([{"prompt_token_ids": prompt}], [params], use_tqdm=False)
        assert list(output.outputs[0].token_ids) == expected
        assert passes_so_far(engine) - before == passes
        fewest = min(fewest, passes)
    assert fewest < 24, "two passes for each block would be at least as many"
