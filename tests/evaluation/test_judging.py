"""Judging: verdicts as tasks give them, and those that programs give in the sandbox."""

import pytest

from setblock.data.tasks import Example, Program, Task, Verdict
from setblock.evaluation import sandbox
from setblock.evaluation.judging import check_judge, verdicts_on


def ask(split, seed):
    raise AssertionError("nothing is to be asked")


def program(example, answer):
    return Program(f"{answer}\nassert double(4) == 8")


DOUBLES = Task("doubles", "a function that doubles", ask, program, runs_code=True)


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


def test_a_sandbox_that_can_not_be_is_told_before_anything_is_asked(monkeypatch):
    def refuse(level):
        raise sandbox.SandboxError("no sandbox")

    monkeypatch.setattr(sandbox, "check", refuse)
    with pytest.raises(sandbox.SandboxError):
        check_judge(DOUBLES, level="confined")
    check_judge(Task("open", "anything", ask), level="confined")


def test_verdicts_have_scores_of_their_own_and_some_tasks_none():
    fields = Task("fields", "two fields", ask, lambda example, answer: Verdict(answer == "ab", {"half": 0.5}))
    found = verdicts_on(fields, [Example("?")] * 2, ["ab", "a"])
    assert found == [Verdict(True, {"half": 0.5}), Verdict(False, {"half": 0.5})]
    assert verdicts_on(Task("open", "anything", ask), [Example("?")], ["a"]) is None
