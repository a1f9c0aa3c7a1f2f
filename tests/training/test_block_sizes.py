"""Block sizes: drawn evenly, and small ones first where they are to grow."""

from types import SimpleNamespace
from typing import Any

import pytest

from setblock.training.inputs.collator import EVALUATION, drawn_block_size

STEPS = 1000


def drawn(step: int, *, seed: int = 0, curriculum: float = 0.5) -> int:
    args: Any = SimpleNamespace(block_sizes=[4, 16, 8, 16], seed=seed, block_size_curriculum=curriculum)
    return drawn_block_size(args, step=step, max_steps=STEPS)


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [(0, 125, {4}), (126, 250, {4, 8}), (251, 375, {4, 8, 16}), (500, STEPS, {4, 8, 16})],
)
def test_sizes_grow_over_the_curriculum(begin: int, end: int, expected: set[int]) -> None:
    assert {drawn(step) for step in range(begin, end + 1)} == expected


def test_sizes_are_drawn_evenly_and_anew_in_each_step_and_seed() -> None:
    """One that is there twice is drawn twice as often; a resumed step gets what it got before."""

    def draws(seed: int, *, curriculum: float = 0.0) -> list[int]:
        return [drawn(step, seed=seed, curriculum=curriculum) for step in range(4000)]

    found = draws(0)
    assert [found.count(size) for size in (4, 8, 16)] == pytest.approx([1000, 1000, 2000], rel=0.1)
    assert found[500:] == draws(0, curriculum=0.5)[500:]
    same = sum(one == other for one, other in zip(found, draws(1), strict=True))
    assert 0.3 < same / 4000 < 0.45  # by chance, (1 + 1 + 4) / 16


def test_evaluations_have_the_largest() -> None:
    assert drawn(EVALUATION) == 16
