"""Judging: verdicts as tasks give them, and those that programs give."""

import pytest

from setblock.data.tasks import Example, Program, Task, Verdict
from setblock.errors import ParameterError, SetBlockError
from setblock.evaluation import evaluate, judging
from setblock.evaluation.judging import check_judge, verdicts_on


def ask(split, seed):
    raise AssertionError("nothing is to be generated")


def program(example, answer):
    return Program(f"{answer}\nassert double(4) == 8")


DOUBLES = Task("doubles", "a function that doubles", ask, program, runs_code=True)


@pytest.mark.filterwarnings("ignore:programs that the model wrote")
def test_programs_are_run_and_only_one_that_comes_to_its_end_is_right():
    answers = [
        "def double(n): return 2 * n",
        "def double(n): return 8",
        "def double(n): return n",
        "def",
        "",
        "import os\nos._exit(0)",
    ]
    found = verdicts_on(DOUBLES, [Example("?")] * len(answers), answers)
    assert [each.right for each in found] == [True, True, False, False, False, False]


def test_programs_run_only_where_that_is_allowed_and_can_be():
    """Raised before anything is generated."""
    with pytest.raises(ParameterError, match="doubles runs programs that the model writes: allow it with --allow-code"):
        check_judge(DOUBLES, allow_code_execution=False)
    with pytest.raises(ParameterError, match="--allow-code-execution"):
        evaluate(None, DOUBLES)
    check_judge(Task("open", "anything", ask), allow_code_execution=False)


def test_where_programs_can_not_run_nothing_is_generated(monkeypatch):
    def refuse():
        raise SetBlockError("no limits")

    monkeypatch.setattr(judging, "_confinement", refuse)
    with pytest.raises(SetBlockError, match="no limits"):
        check_judge(DOUBLES, allow_code_execution=True)
    check_judge(Task("open", "anything", ask), allow_code_execution=True)


def test_verdicts_have_scores_of_their_own_and_some_tasks_none():
    fields = Task("fields", "two fields", ask, lambda example, answer: Verdict(answer == "ab", {"half": 0.5}))
    found = verdicts_on(fields, [Example("?")] * 2, ["ab", "a"])
    assert found == [Verdict(True, {"half": 0.5}), Verdict(False, {"half": 0.5})]
    assert verdicts_on(Task("open", "anything", ask), [Example("?")], ["a"]) is None
