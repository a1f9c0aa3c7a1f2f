"""Draws and certainty, compiled: each reads the logits once, and writes nothing of the vocabulary's size."""

import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._inductor.utils import run_and_get_code

from setblock.decoding.step.certainty import certainty_of
from setblock.decoding.step.choice import Draws, choose_tokens
from setblock.decoding.step.logits import most_likely

VOCABULARY = 5003
POSITIONS = torch.tensor([[3, 4, 5, 6], [11, 12, 13, 14], [90, 91, 92, 93]])
DRAWS = Draws(torch.tensor([0.0, 1.0, 0.7]), None, None, None, torch.tensor([5, 99991, 3]), is_greedy=False)


@pytest.fixture
def logits() -> Tensor:
    drawn = 3 * torch.randn(3, 4, VOCABULARY, generator=torch.Generator().manual_seed(0))
    drawn[..., 7] = -torch.inf  # banned
    return drawn


def drawn(logits: Tensor, best: Tensor) -> Tensor:
    return choose_tokens(logits, DRAWS, positions=POSITIONS, best=best)


def certain(logits: Tensor, greatest: Tensor) -> Any:
    return certainty_of(logits, greatest, torch.ones(3, 4, dtype=torch.bool))


@pytest.mark.parametrize("in_tiles", [False, True])
def test_certainty_is_that_of_the_distribution(logits: Tensor, in_tiles: bool) -> None:
    probs = logits.double().softmax(dim=-1)
    expected = torch.special.entr(probs).sum(dim=-1), probs.amax(dim=-1)
    known = torch.ones(3, 4, dtype=torch.bool)
    found = certainty_of(logits, logits.amax(dim=-1), known, in_tiles=in_tiles)
    torch.testing.assert_close([each.double() for each in found], list(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.nightly  # compiled for half a minute
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch warns of what it does itself
@pytest.mark.parametrize("read", [drawn, certain])
def test_nothing_of_the_size_of_the_vocabulary_is_written(logits: Tensor, read: Callable[..., Any]) -> None:
    best = most_likely(logits)
    given = best.token_ids if read is drawn else best.logits
    found, codes = run_and_get_code(torch.compile(read, fullgraph=True, dynamic=False), logits, given)
    shapes = re.findall(r"= empty_strided_\w+\(\(([\d, ]+)\)", "\n".join(codes))
    assert shapes
    assert not [shape for shape in shapes if str(VOCABULARY) in shape]
    if read is drawn:
        assert torch.equal(found, read(logits, given))  # the same noise
    else:
        torch.testing.assert_close(found, read(logits, given))
