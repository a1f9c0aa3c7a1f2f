"""The EB sampler, against eq. 8 written as a loop."""

import math
from dataclasses import dataclass

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from setblock.decoding.samplers import BlockView, EntropyBounded

GAMMAS = st.one_of(st.sampled_from([0.0, 0.1, 0.35, math.inf]), st.floats(0, 8))


@st.composite
def blocks(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Logits [B, k, V] of mixed sharpness, and candidates [B, k]."""
    batch, k, vocabulary = draw(st.integers(1, 3)), draw(st.integers(1, 8)), draw(st.integers(2, 12))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**31)))
    sharpness = torch.rand(batch, k, 1, generator=generator) * 6
    logits = torch.randn(batch, k, vocabulary, generator=generator) * sharpness
    return logits, torch.rand(batch, k, generator=generator) < draw(st.sampled_from([0.3, 0.7, 1.0]))


@dataclass(frozen=True)
class Selected:
    reveal: Tensor
    entropy: Tensor


def select(sampler: EntropyBounded, logits: Tensor, candidates: Tensor) -> Selected:
    block = BlockView.of(logits, candidates, torch.zeros_like(candidates))
    return Selected(sampler.select(block).reveal, block.entropy)


def entropy_of(logits: list[float]) -> float:
    """In nats."""
    largest = max(logits)
    weights = [math.exp(z - largest) for z in logits]
    return -sum(w / sum(weights) * math.log(w / sum(weights)) for w in weights if w)


def eq_8(entropies: list[float], candidates: list[bool], gamma: float) -> tuple[set[int], float]:
    """The positions to reveal, and how far the nearest partial sum is from gamma."""
    order = sorted((i for i, c in enumerate(candidates) if c), key=lambda i: entropies[i])
    s, margin = 0, math.inf
    for size in range(1, len(order) + 1):
        bound = sum(entropies[i] for i in order[: size - 1])
        if bound:
            margin = min(margin, abs(bound - gamma))
        if bound <= gamma:
            s = size
    return set(order[:s]), margin


@given(blocks(), GAMMAS)
def test_reveals_what_eq_8_says(block: tuple[Tensor, Tensor], gamma: float) -> None:
    logits, candidates = block
    selection = select(EntropyBounded(gamma), logits, candidates)
    for row in range(len(logits)):
        entropies = [entropy_of(z) for z in logits[row].tolist()]
        wanted = candidates[row].nonzero()[:, 0].tolist()
        assert selection.entropy[row, wanted].tolist() == pytest.approx([entropies[i] for i in wanted], abs=1e-4)
        expected, margin = eq_8(entropies, candidates[row].tolist(), gamma)
        assume(margin > 1e-3)
        assert set(selection.reveal[row].nonzero()[:, 0].tolist()) == expected


@given(blocks(), GAMMAS)
def test_banned_tokens_change_nothing(block: tuple[Tensor, Tensor], gamma: float) -> None:
    logits, candidates = block
    banned = torch.full((*logits.shape[:2], 3), -math.inf)
    plain = select(EntropyBounded(gamma), logits, candidates)
    with_banned = select(EntropyBounded(gamma), torch.cat([logits, banned], dim=-1), candidates)
    torch.testing.assert_close(with_banned.entropy, plain.entropy, atol=1e-5, rtol=1e-5)
    assume((plain.entropy.sort(dim=1).values.cumsum(dim=1) - gamma).abs().min() > 1e-3 or gamma in (0, math.inf))
    assert torch.equal(with_banned.reveal, plain.reveal)


def test_ties_go_to_the_left() -> None:
    logits = torch.tensor([0.0, 1.0, 2.0]).expand(2, 5, 3)
    candidates = torch.tensor([[True] * 5, [False, True, False, True, True]])
    each = float(select(EntropyBounded(), logits, candidates).entropy[0, 0])
    for gamma, counts in ((0.0, 1), (1.5 * each, 2), (2.5 * each, 3)):
        reveal = select(EntropyBounded(gamma), logits, candidates).reveal
        for row in range(2):
            assert reveal[row].nonzero()[:, 0].tolist() == candidates[row].nonzero()[:, 0].tolist()[:counts]


def test_certain_tokens_are_free() -> None:
    """A distribution with all its mass on one token has entropy 0, and takes none of the bound."""
    logits = torch.tensor([[[0.0, -200.0], [0.0, 0.0], [-200.0, 0.0]]])
    candidates = torch.ones(1, 3, dtype=torch.bool)
    assert select(EntropyBounded(0.0), logits, candidates).reveal.tolist() == [[True, True, True]]
    logits = torch.tensor([[[0.0, -200.0], [0.0, 0.0], [0.0, 0.1]]])
    assert select(EntropyBounded(0.0), logits, candidates).reveal.tolist() == [[True, False, True]]
