"""An adapter on the future block in vLLM: drafts are those of `setblock.generate`, and the text is the base model's."""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from in_vllm.engines import offline, passes_so_far
from in_vllm.test_architectures import FAMILIES
from setblock.decoding.samplers import EntropyPrefix
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError
from setblock.model.loading.loading import load
from setblock.model.sbd_model import SBDModel
from setblock_vllm.config import overrides_for
from slot_engine import generated

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
MASK = {"mask_token_id": 3, "logit_shift": True, "first_token_from_causal": True}
UNO = {"logit_shift": True, "first_token_from_causal": True, "causal_block": True}


def save_adapter(model: nn.Module, folder: Path, facts: Mapping[str, Any] | None, *, std: float = 0.3) -> None:
    """Save a random adapter of all projections of a model, as `setblock export` writes it; without `facts`, a UNO adapter."""
    generator = torch.Generator().manual_seed(1)
    weights = {}
    for name, layer in model.named_modules():
        if name.rpartition(".")[2] in PROJECTIONS and isinstance(layer, nn.Linear):
            for part, shape in (("lora_A", (4, layer.in_features)), ("lora_B", (layer.out_features, 4))):
                weights[f"base_model.model.{name}.{part}.weight"] = torch.randn(shape, generator=generator) * std
    config: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 2, "bias": "none"}
    if facts is not None and "mask_token_id" in facts:
        row = torch.randn(1, model.config.hidden_size, generator=generator)
        weights["base_model.model.model.embed_tokens.token_adapter.trainable_tokens_delta"] = row
        config["trainable_token_indices"] = [facts["mask_token_id"]]
    folder.mkdir()
    save_file(weights, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text(json.dumps(config))
    if facts is not None:
        recorded = {"block_sizes": [4, 8], "noisy_adapter": True, "version": 1, **facts}
        (folder / "facts.json").write_text(json.dumps(recorded))


@pytest.fixture(params=["llama", "qwen2", "mixtral", "uno"])
def folders(request: pytest.FixtureRequest, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> tuple[Path, Path]:
    """A base model that was never trained for blocks, and a random adapter of all its projections."""
    architectures = {"llama": "LlamaForCausalLM", "qwen2": "Qwen2ForCausalLM", "mixtral": "MixtralForCausalLM"}
    family, shape = FAMILIES[architectures.get(request.param, "LlamaForCausalLM")]
    base = tiny_sbd(family, tokenizer, mode="shifted", initializer_range=0.25, **shape)
    base.sbd_config = base.model.config.setblock = None
    base.model.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    facts = {**UNO, "noise_vocab_size": len(tokenizer)} if request.param == "uno" else MASK
    save_adapter(base.model, tmp_path / "adapter", facts)
    return tmp_path / "base", tmp_path / "adapter"


@pytest.fixture
def model(folders: tuple[Path, Path]) -> SBDModel:
    return load(folders[0], adapter=folders[1])


def engine_of(base: Path, adapter: Path, **options: Any) -> Any:
    overrides = overrides_for(base, adapter=adapter)
    return offline(blocks=False, model=base, hf_overrides=overrides, max_model_len=128, **options)


@pytest.fixture
def engine(folders: tuple[Path, Path]) -> Iterator[Any]:
    made = engine_of(*folders)
    yield made
    made.llm_engine.engine_core.shutdown()


def answers(engine: Any, prompts: Sequence[list[int]], extra: Mapping[str, Any]) -> list[list[int]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=32, extra_args=dict(extra))
    outputs = engine.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_drafts_are_those_of_generate(engine: Any, model: SBDModel, prompts: Sequence[list[int]]) -> None:
    """In method `sbd` the text is what was drafted, so that a wrong product of any layer changes it."""
    settings = DecodingSettings(method="sbd", sampler=EntropyPrefix(20.0), block_size=8, max_new_tokens=32)
    expected = [generated(model, prompt, settings)[0] for prompt in prompts]
    assert answers(engine, prompts, {"method": "sbd", "gamma": 20.0, "block_size": 8}) == expected
    plain = [generated(model, prompt, replace(settings, method="ntp", sampler=None))[0] for prompt in prompts]
    assert expected != plain


def test_the_text_is_the_base_models(engine: Any, model: SBDModel, prompts: Sequence[list[int]]) -> None:
    settings = DecodingSettings(method="exact", block_size=8, prompt_lookup=0, max_new_tokens=32)
    extra = {"method": "exact", "block_size": 8, "prompt_lookup": 0}
    plain = [generated(model, prompt, DecodingSettings(method="ntp", max_new_tokens=32))[0] for prompt in prompts]
    for prompt, text in zip(prompts, plain, strict=True):
        before = passes_so_far(engine)
        assert answers(engine, [prompt], extra) == [text]
        assert passes_so_far(engine) - before == generated(model, prompt, settings)[1]
    assert answers(engine, prompts, extra) == plain
    assert answers(engine, prompts, {"method": "ntp"}) == plain


@pytest.mark.parametrize("folders", ["llama"], indirect=True)
def test_drafts_are_copied_from_the_checkpoints_draft_text(
    folders: tuple[Path, Path], tokenizer: PreTrainedTokenizerBase, prompts: Sequence[list[int]]
) -> None:
    settings, base = DecodingSettings(method="exact", block_size=8, max_new_tokens=32), load(folders[0])
    alone = [generated(base, prompt, replace(settings, method="ntp"))[0] for prompt in prompts]
    texts = (tokenizer.decode(token_ids) for token_ids in alone)
    (folders[0] / "draft_text.jsonl").write_text("".join(json.dumps(text) + "\n" for text in texts))
    model, engine = load(folders[0], adapter=folders[1]), engine_of(*folders)
    assert model.draft_text is not None
    try:
        for prompt, text in zip(prompts, alone, strict=True):
            before, (_, passes) = passes_so_far(engine), generated(model, prompt, settings)
            assert answers(engine, [prompt], {"method": "exact", "block_size": 8}) == [text]
            assert passes_so_far(engine) - before == passes < len(text)
    finally:
        engine.llm_engine.engine_core.shutdown()


@pytest.mark.servers
@pytest.mark.parametrize("folders", ["llama", "one head of keys"], indirect=True)
def test_two_processes_share_it(folders: tuple[Path, Path], model: SBDModel, prompts: Sequence[list[int]]) -> None:
    """A and B are split as each layer's weights are; both processes have the only head of keys."""
    settings = DecodingSettings(method="sbd", sampler=EntropyPrefix(20.0), block_size=8, max_new_tokens=32)
    engine = engine_of(*folders, tensor_parallel_size=2)
    try:
        found = answers(engine, prompts, {"method": "sbd", "gamma": 20.0, "block_size": 8})
    finally:
        engine.llm_engine.engine_core.shutdown()
    assert found == [generated(model, prompt, settings)[0] for prompt in prompts]


def layer_of(kind: str, *, rank: int, processes: int) -> tuple[Any, list[int]]:
    """A layer of vLLM as one of several processes has it, without weights; and the sizes of its parts' outputs."""
    from vllm.model_executor.layers import linear

    layer = nn.Module.__new__(getattr(linear, kind))
    nn.Module.__init__(layer)
    layer.input_size, layer.tp_rank, layer.tp_size = 8, rank, processes
    sizes = {"QKVParallelLinear": [16, 8, 8], "MergedColumnParallelLinear": [12, 12], "RowParallelLinear": [20]}[kind]
    shares = [processes] * len(sizes)
    if kind == "QKVParallelLinear":  # four heads of queries and two of keys
        layer.num_kv_head_replicas = max(1, processes // 2)
        shares = [processes, min(2, processes), min(2, processes)]
    layer.output_partition_sizes = (
        sizes if kind == "RowParallelLinear" else [a // b for a, b in zip(sizes, shares, strict=True)]
    )
    return layer, sizes


@pytest.mark.parametrize("processes", [1, 2, 4])
@pytest.mark.parametrize("kind", ["QKVParallelLinear", "MergedColumnParallelLinear", "RowParallelLinear"])
def test_processes_add_up_to_the_adapter(kind: str, processes: int) -> None:
    """Whichever outputs and inputs of a layer each process has. Of a merged layer, the first part has no adapter here."""
    from setblock_vllm.adapted_layers import split

    sizes = layer_of(kind, rank=0, processes=processes)[1]
    adapted = range(1, len(sizes)) if len(sizes) > 1 else range(1)
    parts = {number: (torch.randn(2, 8), torch.randn(2, sizes[number])) for number in adapted}
    x = torch.randn(5, 8)
    expected = [x @ parts[n][0].T @ parts[n][1] if n in parts else torch.zeros(5, size) for n, size in enumerate(sizes)]
    summed = torch.zeros(5, sizes[0])
    for rank in range(processes):
        layer, _ = layer_of(kind, rank=rank, processes=processes)
        inner, outer = split(layer, "a layer", parts)
        if kind == "RowParallelLinear":
            summed += x.chunk(processes, dim=1)[rank] @ inner.T @ outer
            continue
        found = (x @ inner.T @ outer).split(layer.output_partition_sizes, dim=1)
        for number, part in enumerate(found):
            shares = sizes[number] // layer.output_partition_sizes[number]
            of_rank = expected[number].chunk(shares, dim=1)[rank * shares // processes]
            torch.testing.assert_close(part, of_rank)
    if kind == "RowParallelLinear":
        torch.testing.assert_close(summed, expected[0])


@pytest.mark.parametrize(
    ("kind", "parts", "message"),
    [
        (None, {0: (8, 16)}, "it updates model.there, which vLLM's model lacks"),
        ("RMSNorm", {0: (8, 16)}, "a RMSNorm, which sees a part of the tokens only"),
        ("QKVParallelLinear", {0: (8, 15)}, "maps 8 to 16 in part 0, and the adapter 8 to 15"),
        ("RowParallelLinear", {0: (7, 20)}, "maps 8 to 20 in part 0, and the adapter 7 to 20"),
    ],
)
def test_an_adapter_of_another_model_is_refused(kind: str | None, parts: dict[int, Any], message: str) -> None:
    from setblock_vllm.adapted_layers import split

    layer = None if kind is None else nn.RMSNorm(8) if kind == "RMSNorm" else layer_of(kind, rank=0, processes=1)[0]
    given = {number: (torch.ones(2, each[0]), torch.ones(2, each[1])) for number, each in parts.items()}
    with pytest.raises(SetBlockError, match=message):
        split(layer, "model.there", given)
