"""Waiting lines: right by their own account, and by all right answers made one by one."""

import itertools

import pytest

from setblock.data.tasks.lines import OPERATIONS, WaitingLine, names_in, waiting_lines


def naive_lines(operation: str, line: tuple[str, ...], newcomer: str) -> set[tuple[str, ...]]:
    """All right answers, by making them."""
    places = range(len(line))
    if operation == "shuffle":
        return {*itertools.permutations(line)} - {line}
    return {
        "copy": {line},
        "reverse": {tuple(reversed(line))},
        "sort": {tuple(sorted(line))},
        "replace": {(*line[:i], newcomer, *line[i + 1 :]) for i in places},
        "insert": {(*line[:i], newcomer, *line[i:]) for i in (*places, len(line))},
        "remove": {line[:i] + line[i + 1 :] for i in places},
    }[operation]


@pytest.mark.parametrize("operation", OPERATIONS)
@pytest.mark.parametrize("line", [("Tom", "Ana", "Ben"), ("Ana", "Ben", "Tom"), ("Zoe", "Ana", "Ben", "Tom")])
def test_a_line_is_right_exactly_if_it_can_be_made(operation, line):
    example = WaitingLine("", operation=operation, line=line, newcomer="Max")
    names = (*line, "Max", "Eva")
    shapes = (itertools.product(names, repeat=length) for length in range(len(line) + 2 if len(line) < 4 else 4))
    right = naive_lines(operation, line, "Max")
    tried = {*itertools.chain(*shapes), *right}
    assert {written for written in tried if example.is_right(written)} == right


@pytest.mark.parametrize("operation", OPERATIONS)
def test_the_answer_of_a_line_is_right(operation):
    for example in itertools.islice(waiting_lines(operation, "train"), 100):
        assert example.is_right(names_in(example.completion)), example
        assert example.newcomer not in example.line
