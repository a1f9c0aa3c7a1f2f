"""Tests of the Triton kernel, run by `test_paged_kernel.py` in a process where Triton's functions are interpreted."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from measuring.tape import Tape
from paged import random_pass, random_scores
from setblock.model.attention import paged_kernel
from setblock.model.attention.paged_attention import TritonAttention, paged_attention


@pytest.fixture(autouse=True, scope="module")
def _empty_memory_is_nan() -> Iterator[None]:
    """What the kernel reads and did not write shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


@settings(max_examples=10)  # each takes up to seconds
@given(
    rows=st.just(2),
    groups=st.integers(1, 2),
    of_group=st.integers(1, 4),
    queries=st.integers(1, 12),
    size=st.sampled_from([8, 24, 64]),
    page_tokens=st.sampled_from([1, 16, 24]),
    most=st.sampled_from([3, 12]),
    window=st.sampled_from([None, 1, 7, 40]),
    has_nan=st.booleans(),
    is_capped=st.booleans(),
    has_sinks=st.booleans(),
    seed=st.integers(0, 99),
)
def test_equals_plain_attention(
    window: int | None, page_tokens: int, most: int, queries: int, is_capped: bool, has_sinks: bool, **sizes: Any
) -> None:
    queries, heads = min(queries, page_tokens * most // 3), sizes["groups"] * sizes["of_group"]
    one = random_pass(page_tokens=page_tokens, most=most, queries=queries, **sizes)
    form = random_scores(heads, is_capped=is_capped, has_sinks=has_sinks)
    found = one.by(TritonAttention(of_group=sizes["of_group"]), window, form)
    # 1e-5 and not 1e-6: the kernel adds tiles of keys up, and then splits, each with another greatest score
    torch.testing.assert_close(found.double(), one.naive(window, form), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("rows", "queries", "of_group", "size"), [(1, 1, 4, 64), (1, 33, 4, 16), (1, 20, 4, 160)])
def test_keys_and_queries_are_split(rows: int, queries: int, of_group: int, size: int) -> None:
    """Over more programs than one: a row of few queries by its keys, one of more queries than a program takes by them, too."""
    one = random_pass(
        rows=rows + 1, groups=1, of_group=of_group, queries=queries, size=size, page_tokens=16, most=40, seed=3
    )
    found = one.by(TritonAttention(of_group=of_group))
    torch.testing.assert_close(found.double(), one.naive(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("splits", [1, 2, 5])
def test_the_number_of_splits_changes_nothing(splits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(paged_kernel, "_LEAST_SPLIT", 1)
    monkeypatch.setattr(paged_kernel, "_processors", lambda device: 4 * splits)  # 4 programs without a split
    one = random_pass(rows=2, groups=2, of_group=3, queries=5, size=16, most=20)
    found = one.by(TritonAttention(of_group=3), window=100)
    torch.testing.assert_close(found.double(), one.naive(window=100), rtol=1e-5, atol=1e-5)


def test_half_precision_is_summed_in_float32() -> None:
    one = random_pass(rows=2, groups=2, of_group=2, queries=4, size=16, most=20)
    attention = paged_attention(torch.device("cpu"), of_group=2, kind="triton")
    places, mask = attention.places(one.given), attention.mask(one.given, None)
    query, keys, values = one.query.half(), one.keys.half(), one.values.half()
    found = attention.attend(query, keys, values, places, mask)
    assert found.dtype == torch.float16
    torch.testing.assert_close(found.double(), one.naive(), rtol=0.01, atol=0.01)


def test_preparation_can_be_captured() -> None:
    one = random_pass(rows=3, groups=2, of_group=3, queries=5, size=16)
    attention = TritonAttention(of_group=3)
    places, mask = Tape().capture(lambda: (attention.places(one.given), attention.mask(one.given, None)))
    assert (places.dtype, mask.dtype, mask.shape) == (torch.int32, torch.int32, (3, 1, 5, 2))
