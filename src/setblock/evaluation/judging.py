"""Judge the texts of answers to a task. Where a program decides, it is run, if the user has allowed that.

Knows tasks. Knows nothing of models, of how a program is confined, or of what scores are used for.
"""

from collections.abc import Sequence
from typing import Any

from setblock.data.tasks import Example, Program, Task, Verdict
from setblock.errors import ParameterError
from setblock.evaluation import programs


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
