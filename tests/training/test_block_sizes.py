"""Block sizes: drawn evenly, and small ones first where they are to grow."""

import pytest

from setblock.training.inputs.collator import drawn_block_size

SIZES = [4, 16, 8, 16]


def drawn(progress: float, curriculum: float, *, sizes: list[int] = SIZES) -> set[int]:
    return {drawn_block_size(sizes, seed=0, step=step, progress=progress, curriculum=curriculum) for step in range(200)}


@pytest.mark.parametrize(
    ("progress", "expected"),
    [(0.0, {4}), (0.12, {4}), (0.13, {4, 8}), (0.26, {4, 8, 16}), (0.5, {4, 8, 16}), (1.0, {4, 8, 16})],
)
def test_sizes_grow_over_the_curriculum(progress: float, expected: set[int]) -> None:
    assert drawn(progress, 0.5) == expected


def test_sizes_are_drawn_evenly_and_anew_in_each_step_and_seed() -> None:
    """One that is there twice is drawn twice as often; a resumed step gets what it got before."""

    def draws(seed: int, *, progress: float = 0.9, count: int = 4000) -> list[int]:
        return [
            drawn_block_size(SIZES, seed=seed, step=step, progress=progress, curriculum=0.5) for step in range(count)
        ]

    found = draws(0)
    assert [found.count(size) for size in (4, 8, 16)] == pytest.approx([1000, 1000, 2000], rel=0.1)
    assert found == draws(0, progress=1.0)
    same = sum(one == other for one, other in zip(found, draws(1), strict=True))
    assert 0.3 < same / 4000 < 0.45  # by chance, (1 + 1 + 4) / 16
