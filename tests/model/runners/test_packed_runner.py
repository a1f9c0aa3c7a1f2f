"""How rows are grouped for attention: each once, and as cheaply as any groups of rows that follow each other."""

import itertools
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from setblock.model.runners.packed_runner import _OF_KEYS, ON_CPU, ON_GPU, rectangles_of


def cost_of(groups: Sequence[Sequence[int]], queries: Sequence[int], keys: Sequence[int], of_one: int) -> int:
    return sum(
        of_one + len(group) * max(keys[row] for row in group) * (max(queries[row] for row in group) + _OF_KEYS)
        for group in groups
    )


@given(
    st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 9000)), min_size=1, max_size=40), st.integers(0, 1 << 16)
)
def test_every_row_is_in_one_rectangle(sizes: list[tuple[int, int]], of_one: int) -> None:
    queries, keys = [q for q, _ in sizes], [q + cached for q, cached in sizes]
    groups = rectangles_of(queries, keys, of_one=of_one)
    assert sorted(row for group in groups for row in group) == list(range(len(sizes)))


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.integers(0, 1000)), min_size=1, max_size=7, unique_by=lambda each: each[0]
    ),
    st.integers(0, 10_000),
)
def test_no_other_groups_of_rows_in_order_cost_less(sizes: list[tuple[int, int]], of_one: int) -> None:
    queries, keys = [q for q, _ in sizes], [q + cached for q, cached in sizes]
    order = sorted(range(len(sizes)), key=lambda row: -queries[row])
    least = min(
        cost_of([order[start:end] for start, end in itertools.pairwise([0, *cuts, len(order)])], queries, keys, of_one)
        for count in range(len(order))
        for cuts in itertools.combinations(range(1, len(order)), count)
    )
    assert cost_of(rectangles_of(queries, keys, of_one=of_one), queries, keys, of_one) == least


def test_one_row_that_drafts_is_apart_from_many_that_do_not() -> None:
    queries, keys = [1] * 15 + [6] + [1] * 16, [190] * 32
    assert rectangles_of(queries, keys, of_one=ON_CPU) == [[15], [*range(15), *range(16, 32)]]
    assert len(rectangles_of(queries, keys, of_one=ON_GPU)) == 1


def test_rows_of_like_sizes_are_one_rectangle() -> None:
    assert rectangles_of([32, 16, 16, 32, 1], [190, 200, 180, 195, 198], of_one=ON_GPU) == [[3, 0, 1, 2, 4]]
    assert rectangles_of([1, 1, 2, 1], [200, 180, 150, 190], of_one=ON_CPU) == [[2, 0, 3, 1]]


def test_a_long_prompt_is_one_by_itself() -> None:
    assert rectangles_of([2048, 16, 16], [2048, 2000, 2000], of_one=ON_GPU) == [[0], [1, 2]]
