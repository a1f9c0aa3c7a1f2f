"""Attention over pages: that of `decode_mask` over copied keys, in passes that a CUDA graph can capture."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch._dynamo.utils import counters

from families import GPT_OSS, WINDOW, tiny_model
from measuring.tape import Tape
from page_cache import PageCache, write_pages
from paged import random_pass, random_scores
from setblock.errors import SetBlockError
from setblock.masks import decode_mask, to_dense
from setblock.model.attention.attention import layer_windows, mask_form
from setblock.model.attention.grouped import GROUPED_SDPA, attention_by
from setblock.model.attention.paged_attention import (
    PAGED,
    FlexAttention,
    GatherAttention,
    PagedCall,
    PagedInput,
    TritonAttention,
    attend_layer,
    paged_arguments,
    paged_attention,
)
from setblock.model.runners.forward import logits_at

PASSES: dict[str, Any] = {
    "rows": st.integers(2, 4),
    "groups": st.integers(1, 3),
    "of_group": st.integers(1, 4),
    "queries": st.integers(1, 20),
    "size": st.sampled_from([8, 24, 64]),
    "page_tokens": st.sampled_from([16, 32]),
    "seed": st.integers(0, 99),
}
UNCOMPILED = pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
"""FlexAttention then computes all scores of the cache: what is tested is its masks."""

FORMS = {"is_capped": st.booleans(), "has_sinks": st.booleans()}
WINDOWS = st.sampled_from([None, 1, 7, 40])


def assert_same(found: torch.Tensor, expected: torch.Tensor) -> None:
    torch.testing.assert_close(found.double(), expected, rtol=1e-6, atol=1e-6)


@given(window=WINDOWS, has_nan=st.booleans(), **FORMS, **PASSES)
def test_gather_is_plain_attention(window: int | None, is_capped: bool, has_sinks: bool, **sizes: Any) -> None:
    one, heads = random_pass(**sizes), sizes["groups"] * sizes["of_group"]
    form = random_scores(heads, is_capped=is_capped, has_sinks=has_sinks)
    assert_same(one.by(GatherAttention(of_group=sizes["of_group"]), window, form), one.naive(window, form))


@UNCOMPILED
@given(window=WINDOWS, **FORMS, **PASSES)
def test_flex_is_plain_attention(window: int | None, is_capped: bool, has_sinks: bool, **sizes: Any) -> None:
    one, heads = random_pass(**sizes), sizes["groups"] * sizes["of_group"]
    form = random_scores(heads, is_capped=is_capped, has_sinks=has_sinks)
    with torch.compiler.set_stance("force_eager"):
        assert_same(one.by(FlexAttention(of_group=sizes["of_group"]), window, form), one.naive(window, form))


@given(window=WINDOWS, **PASSES)
def test_flex_lists_the_pages_that_are_seen(window: int | None, **sizes: Any) -> None:
    """No others are read by the compiled kernel; uncompiled, FlexAttention reads all."""
    one = random_pass(**sizes)
    mask, table = FlexAttention(of_group=sizes["of_group"]).mask(one.given, window), one.given.page_table
    seen = to_dense(
        one.given.mask_mod(window),
        batch=len(table),
        queries=sizes["queries"],
        keys=table.shape[1] * sizes["page_tokens"],
    )
    pages = seen[:, 0].any(dim=1).view(*table.shape, -1).any(dim=2)  # [R, M]
    for row, count in enumerate(mask.kv_num_blocks.flatten().tolist()):
        assert mask.kv_indices[row, 0, 0, :count].tolist() == table[row][pages[row]].tolist()


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch warns of what it does itself
@pytest.mark.parametrize("backend", ["eager", pytest.param("inductor", marks=pytest.mark.nightly)])
@pytest.mark.parametrize("of_group", [2, 3])
def test_flex_is_compiled_once(of_group: int, backend: str) -> None:
    attention, graphs = FlexAttention(of_group=of_group, backend=backend), []
    with torch.inference_mode():
        for seed in range(3):
            one = random_pass(
                rows=2, groups=2, of_group=of_group, queries=4, size=16, page_tokens=128, most=2, seed=seed
            )
            assert_same(one.by(attention), one.naive())
            graphs.append(counters["stats"]["unique_graphs"])
    assert graphs[0] == graphs[2]


def test_a_query_that_sees_nothing_gives_zeros() -> None:
    one = random_pass(rows=3, groups=2, of_group=2, queries=4, size=8, has_nan=True)
    limits = one.given.limits.clone()
    limits[0, 2] = 0
    one = replace(one, given=replace(one.given, limits=limits))
    for found in (one.by(GatherAttention(of_group=2)), one.by(GatherAttention(of_group=2), window=3)):
        assert not found[-1].any()
        assert not found[0, 2].any()
        assert found[0, 1].all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    one = random_pass(rows=3, groups=2, of_group=3, queries=5, size=16)
    half = replace(one, **{name: getattr(one, name).to(dtype) for name in ("query", "keys", "values")})
    found = half.by(GatherAttention(of_group=3))
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), half.naive(), rtol=0.02, atol=0.02)


# Captures


def attention_of(kind: str) -> Any:
    return (
        object.__new__(TritonAttention)
        if kind == "triton"
        else paged_attention(torch.device("cpu"), of_group=3, kind=kind)
    )


@pytest.mark.parametrize("window", [None, 7])
@pytest.mark.parametrize("kind", ["gather", "flex", "triton"])
def test_a_pass_can_be_captured(kind: str, window: int | None) -> None:
    """Its preparation, and what runs in each layer if that is not one compiled function."""
    one, attention = (
        random_pass(rows=3, groups=2, of_group=3, queries=5, size=16),
        attention_of(kind),
    )
    slots = one.given.slots(one.given.positions)

    def run() -> None:
        places, mask = attention.places(one.given), attention.mask(one.given, window)
        write_pages(one.keys, one.query[:, :2], slots)
        if kind == "gather":
            attention.attend(one.query, one.keys, one.values, places, mask)

    Tape().capture(run)  # raises what a capture would


@pytest.mark.parametrize("kind", ["gather", "flex", "triton"])
def test_all_is_on_the_device_of_its_inputs(kind: str) -> None:
    """On the device `meta`, a tensor of the CPU is an error, as it is on a GPU."""
    one = random_pass(rows=3, groups=2, of_group=3, queries=5, size=16)
    there = {name: each.to("meta") for name, each in vars(one.given).items() if isinstance(each, torch.Tensor)}
    on_meta = replace(one.given, **there)
    attention, query = attention_of(kind), one.query.to("meta")
    places, mask = attention.places(on_meta), attention.mask(on_meta, 7)
    assert mask.kv_indices.is_meta if kind == "flex" else mask.is_meta
    keys, values = one.keys.to("meta"), one.values.to("meta")
    write_pages(keys, query[:, :2], on_meta.slots(on_meta.positions))
    if kind == "flex":
        index = torch.zeros(1, dtype=torch.long, device="meta")
        assert mask.mask_mod(index, index, index, index).is_meta
    if kind == "gather":
        assert attention.attend(query, keys, values, places, mask).is_meta


@pytest.mark.parametrize("kind", ["gather", "flex"])
def test_shapes_do_not_depend_on_values(kind: str) -> None:
    shapes = []
    for seed in range(2):
        one = random_pass(rows=3, groups=2, of_group=3, queries=5, size=16, seed=seed)
        mask = attention_of(kind).mask(one.given, 7)
        shapes.append(mask.kv_indices.shape if kind == "flex" else mask.shape)
    assert shapes[0] == shapes[1]


# In a model


def run_passes(model: Any, kind: str, *, of_group: int) -> list[torch.Tensor]:
    """Feed two rows of three their prompts, then 4 tokens causally and a block of 4; return the logits [R, 8, V] of the last
    pass, of the two rows paged, and whole without a cache."""
    config, page_tokens, most = model.config.get_text_config(), 16, 3
    attention = paged_attention(torch.device("cpu"), of_group=of_group, kind=kind)
    cache = PageCache(layers=config.num_hidden_layers, pages=8, page_tokens=page_tokens)
    table = torch.tensor([[3, 1, 6], [0, 5, 2], [7, 7, 7]])
    tokens = torch.randint(0, 32, (3, most * page_tokens), generator=torch.Generator().manual_seed(1))
    windows, length = layer_windows(config), torch.tensor([20, 31, 0])
    for start, queries in ((torch.zeros(3, dtype=torch.long), 31), (length, 8)):
        positions = start[:, None] + torch.arange(queries)
        is_real = positions < length[:, None] + (8 if queries == 8 else 0)
        is_real[2] = False
        limits = positions + 1
        if queries == 8:
            limits = torch.where(torch.arange(8) < 4, limits, length[:, None] + 8)
        given = PagedInput(table, positions, limits.where(is_real, 0), cache.pages, page_tokens)
        cache.write_to(given.slots(positions), is_real)
        with attention_by(PAGED, config):
            logits = logits_at(
                model,
                torch.arange(3 * queries),
                input_ids=tokens.gather(1, positions),
                position_ids=positions,
                cache=cache,
                **paged_arguments(attention, given, windows),
            ).view(3, queries, -1)
    whole, own = [], config._attn_implementation
    for row in range(2):
        end = int(length[row]) + 8
        position_ids = torch.arange(end)[None]
        limits = (position_ids + 1).where(position_ids < end - 4, end)
        mask = mask_form(model, most=end, device=torch.device("cpu"), implementation=own).mask(
            lambda window, at=position_ids, to=limits: decode_mask(position_ids=at, limits=to, window=window),
            batch=1,
            queries=end,
            keys=end,
        )
        with attention_by(GROUPED_SDPA if own == "sdpa" else own, config):
            whole.append(
                logits_at(
                    model,
                    torch.arange(end - 8, end),
                    input_ids=tokens[row, None, :end],
                    position_ids=position_ids,
                    attention_mask=mask,
                )
            )
    return [logits[:2], torch.stack(whole)]


@pytest.mark.parametrize(
    ("family", "heads", "options"),
    [
        ("llama", 4, {}),
        ("llama", 6, {"num_attention_heads": 6, "hidden_size": 48}),  # groups of 3
        ("qwen3", 4, {}),
        ("mistral", 4, {}),
        ("gemma3_text", 4, {}),  # layers with and without a window
        ("gemma2", 4, {}),  # soft-capping
        ("gpt_oss", 4, GPT_OSS),  # sinks
    ],
)
@UNCOMPILED
@pytest.mark.parametrize("kind", ["gather", "flex"])
@torch.inference_mode()
def test_a_model_over_pages_gives_its_own_logits(kind: str, family: str, heads: int, options: dict[str, Any]) -> None:
    model = tiny_model(family, vocab_size=32, **options)
    assert set(layer_windows(model.config).values()) <= {None, WINDOW}
    with torch.compiler.set_stance("force_eager"):
        found, expected = run_passes(model, kind, of_group=heads // 2)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("name", "value"), [("position_bias", torch.zeros(1)), ("dropout", 0.1)])
def test_attention_of_other_kinds_is_refused(name: str, value: Any) -> None:
    one, module, paged = torch.zeros(1), torch.nn.Identity(), PagedCall(GatherAttention(of_group=1), None)
    with pytest.raises(SetBlockError, match=f"Identity has attention with {name}: it can't attend pages"):
        attend_layer(module, one, one, one, None, paged=paged, **{name: value})


def test_a_model_that_drops_the_argument_is_refused() -> None:
    model = tiny_model("llama", vocab_size=32)
    with attention_by(PAGED, model.config), pytest.raises(SetBlockError, match="does not pass its arguments on"):
        model(torch.zeros(1, 3, dtype=torch.long))


# The choice


def test_the_choice() -> None:
    cpu = torch.device("cpu")
    assert isinstance(paged_attention(cpu, of_group=1), GatherAttention)
    assert isinstance(paged_attention(cpu, of_group=1, kind="flex"), FlexAttention)
    with pytest.raises(SetBlockError, match="kind must be one of gather, flex, triton, not 'paged'"):
        paged_attention(cpu, of_group=1, kind="paged")  # type: ignore[arg-type]


def test_a_gpu_has_flex_where_triton_is_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    name = "setblock.model.attention.paged_attention.find_spec"
    monkeypatch.setattr(name, lambda package: object())
    assert isinstance(paged_attention(torch.device("cuda"), of_group=1), FlexAttention)
    monkeypatch.setattr(name, lambda package: None)
    assert isinstance(paged_attention(torch.device("cuda"), of_group=1), GatherAttention)
    for kind in ("flex", "triton"):
        with pytest.raises(SetBlockError, match=f"paged attention {kind} needs Triton"):
            paged_attention(torch.device("cuda"), of_group=1, kind=kind)  # type: ignore[arg-type]
