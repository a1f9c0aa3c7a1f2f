"""Attention with grouped queries: Transformers' own result, without a copy of the cache."""

from contextlib import suppress
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from families import tiny_model
from setblock.model.attention.grouped import GROUPED_SDPA, GroupedAttention

SIZE = 8


def inputs(batch, groups, of_group, queries, keys, *, seed=0):
    torch.manual_seed(seed)
    query = torch.randn(batch, queries, groups * of_group, SIZE).transpose(1, 2)  # as layers have it
    key, value = torch.randn(2, batch, groups, keys, SIZE)
    mask = torch.rand(batch, 1, queries, keys) < 0.5
    mask[..., 0] = True  # each query sees something
    return SimpleNamespace(num_key_value_groups=of_group, is_causal=True), query, key, value, mask


@given(
    batch=st.integers(1, 3),
    groups=st.integers(1, 3),
    of_group=st.integers(1, 4),
    queries=st.integers(1, 60),
    keys=st.integers(1, 40),
    is_additive=st.booleans(),
)
def test_equals_sdpa(batch, groups, of_group, queries, keys, is_additive):
    """For every shape, on both sides of the number of queries from which Transformers' own is taken."""
    module, query, key, value, mask = inputs(batch, groups, of_group, queries, keys)
    if is_additive:
        mask = torch.zeros(()).where(mask, -torch.inf)
    ours, theirs = (
        ALL_ATTENTION_FUNCTIONS[name](module, query, key, value, mask, scaling=0.3)[0]
        for name in (GROUPED_SDPA, "sdpa")
    )
    assert ours.shape == theirs.shape == (batch, queries, groups * of_group, SIZE)
    torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("queries", [1, 16, 60])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("more", [{}, {"position_bias": None}, {"cache": None, "dropout": 0.0}])
def test_no_mask_lets_each_query_see_every_key(queries, dtype, more):
    module, *states, mask = inputs(batch=2, groups=2, of_group=3, queries=queries, keys=64)
    states = [each.to(dtype) for each in states]
    without, with_all = (
        ALL_ATTENTION_FUNCTIONS[GROUPED_SDPA](module, *states, each, **more)[0]
        for each in (None, torch.ones_like(mask))
    )
    torch.testing.assert_close(without, with_all)


def test_reads_the_cache_where_it_is(monkeypatch):
    module, query, key, value, mask = inputs(batch=2, groups=2, of_group=3, queries=16, keys=64)
    read = []
    attend = functional.scaled_dot_product_attention
    monkeypatch.setattr(
        functional, "scaled_dot_product_attention", lambda q, k, v, **how: read.append((k, v)) or attend(q, k, v, **how)
    )
    ALL_ATTENTION_FUNCTIONS[GROUPED_SDPA](module, query, key, value, mask)
    assert [(k.data_ptr(), v.data_ptr()) for k, v in read] == [(key.data_ptr(), value.data_ptr())]


def test_takes_a_result_with_heads_innermost(lay_heads_innermost):
    module, *states, mask = inputs(batch=2, groups=2, of_group=3, queries=16, keys=64)
    expected, _ = ALL_ATTENTION_FUNCTIONS[GROUPED_SDPA](module, *states, mask)
    lay_heads_innermost()
    found, _ = ALL_ATTENTION_FUNCTIONS[GROUPED_SDPA](module, *states, mask)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(("usual", "meanwhile"), [("sdpa", GROUPED_SDPA), ("eager", "eager")])
def test_a_model_has_its_own_attention_back(usual, meanwhile):
    model = tiny_model("llama", vocab_size=32)
    model.config._attn_implementation = usual
    with suppress(KeyboardInterrupt), GroupedAttention(model).active():
        assert model.config._attn_implementation == meanwhile
        raise KeyboardInterrupt
    assert model.config._attn_implementation == usual
