"""The generated word problems: right, distinct, and split without overlap."""

import itertools
import re

import pytest

from setblock.data.tasks.task import SPLITS, Split, split_of
from setblock.data.tasks.word_problems import answer_in, word_problems


def some(split: Split, count: int = 400, seed: int = 0) -> list:
    return list(itertools.islice(word_problems(split, seed), count))


def test_splits_share_no_problem() -> None:
    skeletons = [{p.identity for p in some(split)} for split in SPLITS]
    for a, b in itertools.combinations(skeletons, 2):
        assert not a & b
    assert all(split_of(p.identity) == "test" for p in some("test"))


def test_the_same_seed_gives_the_same_distinct_problems() -> None:
    first, again, other = some("train"), some("train"), some("train", seed=1)
    assert first == again
    assert first != other
    assert len({p.question for p in first}) == len(first)


def test_every_written_sum_is_right_and_the_last_is_the_answer() -> None:
    for problem in some("train", 1000):
        sums = re.findall(r"(\d+) ([-+*/]) (\d+) = (\d+)", problem.answer)
        assert sums
        for a, operator, b, result in sums:
            left, right = int(a), int(b)
            value = {"+": left + right, "-": left - right, "*": left * right, "/": left / right}[operator]
            assert value == int(result), problem
        assert int(sums[-1][3]) == problem.number, problem
        assert answer_in(problem.completion) == problem.number


@pytest.mark.parametrize(
    ("text", "answer"),
    [("so\n#### 12", 12), ("#### 3\n#### -4", -4), ("####7 apples", 7), ("no number", None), ("####", None)],
)
def test_answer_in(text: str, answer: int | None) -> None:
    assert answer_in(text) == answer
