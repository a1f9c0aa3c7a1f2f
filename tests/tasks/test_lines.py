"""The repository's own task files: waiting lines, right by their own account and by all right answers made one by one; and
functions of installed packages."""

import itertools
from pathlib import Path

import pytest

from lines import OPERATIONS, WaitingLine, names_in, waiting_lines
from setblock.data.tasks import task_named
from setblock.data.tasks.task import split_of


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


def test_functions_are_cut_after_their_docstring():
    task = task_named(str(Path(__file__).parents[2] / "tasks" / "installed_functions.py"))
    found = list(itertools.islice(task.examples("test"), 5))
    assert len({each.question for each in found}) == 5
    for each in found:
        assert each.question.rstrip().endswith(('"""', "'''", '"', "'"))
        assert split_of(each.identity) == "test"
        assert each.answer[0] in " \t"
