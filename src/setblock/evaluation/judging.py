"""Judge the texts of answers to a task. Where a program decides, it is run in the sandbox.

Knows tasks and the sandbox. Knows nothing of models, or of what scores are used for.
"""

from collections.abc import Sequence
from typing import Any

from setblock.data.tasks import Example, Program, Task, Verdict
from setblock.evaluation import sandbox
from setblock.evaluation.sandbox import Level


def check_judge(task: Task[Any], *, level: Level) -> None:
    """See that answers can be judged here, before anything is asked.

    Raises:
        SandboxError: the task runs code, and there can be no sandbox of this level here.
    """
    if task.runs_code:
        sandbox.check(level)


def verdicts_on(
    task: Task[Any], examples: Sequence[Example], answers: Sequence[str], *, level: Level = "confined"
) -> list[Verdict] | None:
    """Return what each answer scores; None where nobody can say.

    Args:
        level: how programs are confined; see `setblock.evaluation.sandbox`.

    Raises:
        SandboxError: there can be no sandbox here.
    """
    if task.judge is None:
        return None
    judged = [task.judge(example, answer) for example, answer in zip(examples, answers, strict=True)]
    programs = [each.source for each in judged if isinstance(each, Program)]
    assert task.runs_code or not programs
    outcomes = iter(sandbox.run_all(programs, level=level) if programs else ())
    return [Verdict(next(outcomes).finished) if isinstance(each, Program) else each for each in judged]
