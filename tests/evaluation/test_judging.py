"""Judging: verdicts as tasks give them, and what is checked before."""

from dataclasses import replace

import pytest

from setblock.data.tasks import Example, Task, Verdict
from setblock.errors import ParameterError, SetBlockError
from setblock.evaluation import evaluate
from setblock.evaluation.judging import check_judge, verdicts_on


def ask(split, seed):
    raise AssertionError("nothing is to be generated")


def judge(example, answer):
    return Verdict(answer == example.answer)


DOUBLES = Task("doubles", "a function that doubles", ask, judge, runs_code=True)


@pytest.mark.parametrize("runs_code", [False, True])
def test_verdicts_are_in_the_order_of_the_answers(runs_code):
    examples = [Example("?", str(n)) for n in range(20)]
    answers = [str(n - n % 3) for n in range(20)]
    found = verdicts_on(replace(DOUBLES, runs_code=runs_code), examples, answers)
    assert [each.right for each in found] == [n % 3 == 0 for n in range(20)]


def test_programs_run_only_where_that_is_allowed_and_can_be():
    """Raised before anything is generated."""
    with pytest.raises(ParameterError, match="doubles runs programs that the model writes: allow it with --allow-code"):
        check_judge(DOUBLES, allow_code_execution=False)
    with pytest.raises(ParameterError, match="--allow-code-execution"):
        evaluate(None, DOUBLES)
    check_judge(Task("open", "anything", ask), allow_code_execution=False)


def test_where_answers_can_not_be_judged_nothing_is_asked():
    def refuse():
        raise SetBlockError("no limits")

    task = replace(DOUBLES, check=refuse)
    with pytest.raises(SetBlockError, match="no limits"):
        check_judge(task, allow_code_execution=True)
    with pytest.raises(SetBlockError, match="no limits"):
        evaluate(None, task, allow_code_execution=True)
    check_judge(Task("open", "anything", ask), allow_code_execution=True)


def test_verdicts_have_scores_of_their_own_and_some_tasks_none():
    fields = Task("fields", "two fields", ask, lambda example, answer: Verdict(answer == "ab", {"half": 0.5}))
    found = verdicts_on(fields, [Example("?")] * 2, ["ab", "a"])
    assert found == [Verdict(True, {"half": 0.5}), Verdict(False, {"half": 0.5})]
    assert verdicts_on(Task("open", "anything", ask), [Example("?")], ["a"]) is None
