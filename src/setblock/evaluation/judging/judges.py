"""Judge answers: by the task, by a program that is run if the user has allowed it, or by one right text (`JUDGES`).

Knows tasks and texts. Knows nothing of files, of models, or of how a program is confined.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Any

from setblock.data.tasks import Example, Program, Task, Verdict
from setblock.errors import ParameterError
from setblock.evaluation.judging import programs

TextJudge = Callable[[str, str], Verdict]
"""Of a reference and an answer. A reference that has not the form that the judge needs is wrong by itself, too."""

_NUMBER = re.compile(r"-?\d[\d,]*(?:\.\d+)?")


def _exact_match(reference: str, answer: str) -> Verdict:
    return Verdict(answer.strip() == reference.strip())


def _contains(reference: str, answer: str) -> Verdict:
    return Verdict(reference.strip() in answer)


def _last_number(reference: str, answer: str) -> Verdict:
    wanted, found = _number_in(reference), _number_in(answer)
    return Verdict(wanted is not None and wanted == found)


def _json(reference: str, answer: str) -> Verdict:
    """Score `fields`, too: the share of the reference's fields that the answer has with the same value."""
    wanted, found = _json_in(reference), _json_in(answer)
    right = wanted is not None and found == wanted
    if not isinstance(wanted, Mapping) or not isinstance(found, Mapping) or not wanted:
        return Verdict(right, {"fields": float(right)})
    same = sum(key in found and found[key] == value for key, value in wanted.items())
    return Verdict(right, {"fields": same / len(wanted)})


DEFAULT_JUDGE = "exact-match"
JUDGES: dict[str, TextJudge] = {
    "exact-match": _exact_match,
    "contains": _contains,
    "last-number": _last_number,
    "json": _json,
}
"""exact-match: the same text, but for white space around it. contains: the reference occurs in the answer. last-number: the
last number of both is the same. json: both are the same JSON value, with nothing around it."""


def _number_in(text: str) -> Decimal | None:
    found = _NUMBER.findall(text)
    return Decimal(found[-1].replace(",", "")) if found else None


def _json_in(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return None


def check_judge(task: Task[Any], *, allow_code_execution: bool) -> None:
    """See that answers can be judged here, before anything is asked.

    Raises:
        ParameterError: the task runs programs that the model writes, and the user has not allowed it.
        SetBlockError: programs can't be run here.
    """
    if task.runs_code and not allow_code_execution:
        raise ParameterError(
            f"the task {task.name} runs programs that the model writes: allow it with --allow-code-execution "
            "(in Python and recipes allow_code_execution)"
        )
    if task.runs_code:
        programs.check()


def verdicts_on(task: Task[Any], examples: Sequence[Example], answers: Sequence[str]) -> list[Verdict] | None:
    """Return what each answer scores; None where nobody can say. Programs are run: see `check_judge`.

    Raises:
        SetBlockError: programs can't be run here.
    """
    if task.judge is None:
        return None
    judged = [task.judge(example, answer) for example, answer in zip(examples, answers, strict=True)]
    sources = [each.source for each in judged if isinstance(each, Program)]
    assert task.runs_code or not sources
    finished = iter(programs.finish(sources) if sources else ())
    return [Verdict(next(finished)) if isinstance(each, Program) else each for each in judged]
