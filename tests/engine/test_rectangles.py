"""How rows are grouped for attention: each once, and little of it padding."""

from hypothesis import given
from hypothesis import strategies as st

from setblock.model.runners.packed_runner import FEW_PAIRS, rectangles_of


@given(st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 9000)), min_size=1, max_size=40))
def test_every_row_is_in_one_rectangle_of_which_about_half_is_padding_at_most(sizes: list[tuple[int, int]]) -> None:
    queries, keys = [q for q, _ in sizes], [q + cached for q, cached in sizes]
    groups = rectangles_of(queries, keys)
    assert sorted(row for group in groups for row in group) == list(range(len(sizes)))
    for group in groups:
        area = len(group) * max(queries[row] for row in group) * max(keys[row] for row in group)
        real = sum(queries[row] * keys[row] for row in group)
        assert area <= 2 * real + len(group) * FEW_PAIRS


def test_rows_of_like_sizes_are_one_rectangle() -> None:
    assert rectangles_of([32, 16, 16, 32, 1], [900, 1000, 800, 950, 990]) == [[3, 0, 1, 2, 4]]


def test_a_long_prompt_is_one_by_itself() -> None:
    assert rectangles_of([2048, 16, 16], [2048, 2000, 2000]) == [[0], [1, 2]]
