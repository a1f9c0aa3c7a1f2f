"""Tests of the kernel that reads logits once, run by `test_reading_kernel.py` where Triton's functions are interpreted."""

from collections.abc import Iterator

import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from running import Log
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step import reading, reading_kernel
from setblock.decoding.step.certainty import certainty_of
from setblock.decoding.step.choice import Draws, choose_tokens
from setblock.decoding.step.logits import Logits, Reading, most_likely
from setblock.decoding.step.reading_kernel import _TILE, read_by_kernel
from setblock.engine.captured import Eager
from setblock.engine.engine import Engine
from setblock.engine.request import Request


@pytest.fixture(autouse=True, scope="module")
def _empty_memory_is_nan() -> Iterator[None]:
    """What is read and was not written shows."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def draws_by(temperatures: Tensor, seeds: Tensor, **bounds: Tensor) -> Draws:
    return Draws(temperatures, None, None, None, seeds, is_greedy=False)._replace(**bounds)  # type: ignore[arg-type]


def is_finite(logits: Tensor, reading: Reading) -> Tensor:
    nowhere = torch.zeros(logits.shape[:-1], dtype=torch.long)
    return Logits(logits, nowhere, nowhere > 0, reading, width=1).is_finite


def assert_as_plain(logits: Tensor, draws: Draws, positions: Tensor, found: Reading) -> None:
    """What was read of logits [B, n, V] is what PyTorch's operations read of them, where they are finite."""
    finite, best = is_finite(logits, found), most_likely(logits)
    assert torch.equal(finite, is_finite(logits, Reading(best)))
    assert torch.equal(found.best.token_ids[finite], best.token_ids[finite])
    torch.testing.assert_close(found.best.logits, best.logits, rtol=0, atol=0, equal_nan=True)
    expected = certainty_of(logits, best.logits, finite, in_tiles=False)
    assert found.certainty is not None
    for one, other in zip(found.certainty, expected, strict=True):
        torch.testing.assert_close(one[finite], other[finite], rtol=1e-5, atol=1e-5)
    assert found.chosen is not None
    chosen = choose_tokens(logits, draws._replace(kernel=None), positions=positions)
    assert torch.equal(found.chosen[finite], chosen[finite])
    assert bool(((found.chosen >= 0) & (found.chosen < logits.shape[-1])).all())  # of others, too
    assert bool(((found.best.token_ids >= 0) & (found.best.token_ids < logits.shape[-1])).all())


SPECIAL = ("plain", "equal", "ties", "banned", "all banned", "one left", "nan", "infinite", "far apart")


@settings(max_examples=60, deadline=None)
@given(
    vocab_size=st.sampled_from([1, 2, 31, _TILE - 1, _TILE, _TILE + 1, 2 * _TILE + 17]),
    kinds=st.lists(st.sampled_from(SPECIAL), min_size=1, max_size=4),
    places=st.integers(1, 3),
    temperatures=st.lists(st.sampled_from([0.0, 1e-9, 0.3, 0.8, 1.0, 5.0, 1e35]), min_size=4, max_size=4),
    most=st.sampled_from([10, 2**62]),
    seed=st.integers(0, 2**20),
)
def test_reads_what_plain_operations_read(
    vocab_size: int, kinds: list[str], places: int, temperatures: list[float], most: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    # As a pass has them: a part of the positions of a row, and columns of a table
    whole = 4 * torch.randn(len(kinds), places + 2, vocab_size, generator=generator)
    logits = whole[:, 1 : 1 + places]
    for row, kind in zip(logits, kinds, strict=True):
        some = torch.rand(row.shape, generator=generator) < 0.5
        last = (..., vocab_size - 1)
        match kind:
            case "equal":
                row.fill_(-3.0)
            case "ties":
                row.round_()
            case "banned":
                row[some] = -torch.inf
                row[last] = 1.0
            case "all banned":
                row.fill_(-torch.inf)
            case "one left":
                row.fill_(-torch.inf)
                row[last] = -7.0
            case "nan":
                row[last] = torch.nan
            case "infinite":
                row[last] = torch.inf
            case "far apart":
                row.mul_(1e30)
    seeds = torch.randint(-most, most, (len(kinds), 2), generator=generator)[:, 1]
    positions = torch.randint(0, 5000, (len(kinds), places), generator=generator)
    draws = draws_by(torch.tensor(temperatures)[: len(kinds)], seeds)
    found = read_by_kernel(logits, draws.temperature, draws.seeds, positions)
    assert_as_plain(logits, draws, positions, found)


def test_a_row_is_read_alone_as_in_a_batch() -> None:
    """To the bit, whatever is beside it: also entropies, which decide how much a sampler reveals."""
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(3, 5, _TILE + 9, generator=generator)
    temperatures, seeds = torch.tensor([0.7, 0.0, 1.3]), torch.tensor([5, 6, -7])
    positions = torch.arange(15).view(3, 5)
    together = read_by_kernel(logits, temperatures, seeds, positions)
    for row, place in ((0, 0), (1, 4), (2, 3)):
        one, at = slice(row, row + 1), slice(place, place + 1)
        alone = read_by_kernel(logits[one, at], temperatures[one], seeds[one], positions[one, at])
        for ours, theirs in zip(_tensors(alone), _tensors(together), strict=True):
            assert torch.equal(ours, theirs[one, at])


def _tensors(reading: Reading) -> list[Tensor]:
    assert reading.certainty is not None
    assert reading.chosen is not None
    return [*reading.best, *reading.certainty, reading.chosen]


@triton.jit
def _exponentials(given, found, SIZE: tl.constexpr) -> None:  # type: ignore[no-untyped-def]  # noqa: N803
    at = tl.arange(0, SIZE)
    tl.store(found + at, reading_kernel._exponential(tl.load(given + at)))


def test_small_exponentials_are_not_coarse() -> None:
    """They decide which of many tokens is drawn."""
    uniform = torch.cat([2.0 ** torch.linspace(-63, -1, 1000), 1 - 2.0 ** torch.linspace(-24, -1, 24)])
    found = torch.empty_like(uniform)
    _exponentials[1,](uniform, found, SIZE=len(uniform))
    torch.testing.assert_close(found.double(), -torch.log1p(-uniform.double()), rtol=4e-7, atol=0)


def test_a_row_s_draw_is_the_same_beside_a_bounded_one() -> None:
    """A bound in the batch makes PyTorch exclude tokens first; the kernel draws in any case."""
    generator = torch.Generator().manual_seed(2)
    logits, positions = torch.randn(3, 12, 50, generator=generator), torch.arange(36).view(3, 12)
    bounds = {
        "top_k": torch.tensor([50, 3, 50]),
        "top_p": torch.tensor([1.0, 1.0, 0.6]),
        "min_p": torch.tensor([0.0, 0.0, 0.01]),
    }
    plain = draws_by(torch.tensor([0.9, 0.8, 1.2]), torch.tensor([1, 2, 3]))
    free = plain._replace(kernel=read_by_kernel)
    bounded = free._replace(**bounds)  # type: ignore[arg-type]
    assert bounded.reader(logits, positions).chosen is None
    found = choose_tokens(logits, bounded, positions=positions)
    expected = free.reader(logits, positions).chosen
    assert expected is not None
    assert torch.equal(found[0], expected[0])
    assert not torch.equal(found[1], expected[1])
    assert torch.equal(found, choose_tokens(logits, bounded._replace(kernel=None), positions=positions))


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_answers_are_the_same(
    temperature: float, trained_tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of passes of few sizes and of others, in blocks whose sampler goes by the entropies."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    wanted = DecodingSettings(
        method="sbd", sampler=EntropyBounded(4.0), block_size=3, temperature=temperature, seed=1, max_new_tokens=6
    )

    def answer() -> list[int]:
        engine = Engine(sbd, recorder=Eager)
        engine.submit(Request("a", [5, 6, 7], wanted))
        return Log().run(engine)["a"].token_ids

    plain = answer()
    monkeypatch.setattr(reading, "_kernel_on", lambda device: read_by_kernel)
    monkeypatch.setattr(sbd, "cuda_graphs", True)
    assert answer() == plain
