"""Judging of the answers to a task, by the task's own judge."""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from setblock.data.tasks import Example, Task, Verdict
from setblock.errors import ParameterError


def check_judge(task: Task[Any], *, allow_code_execution: bool) -> None:
    """Check, before anything is decoded, that answers can be judged here. Raise `ParameterError` if the judge runs programs
    that the model writes and the user has not allowed it, and the errors of the task's own check."""
    if task.runs_code and not allow_code_execution:
        raise ParameterError(
            f"the task {task.name} runs programs that the model writes: allow it with --allow-code-execution "
            "(in Python and recipes allow_code_execution)"
        )
    if task.check is not None:
        task.check()


def verdicts_on(task: Task[Any], examples: Sequence[Example], answers: Sequence[str]) -> list[Verdict] | None:
    """Return the verdict on each answer; None if the task has no judge. This may run programs: see `check_judge`."""
    if task.judge is None:
        return None
    assert len(examples) == len(answers)
    if not task.runs_code:
        return list(map(task.judge, examples, answers))
    with ThreadPoolExecutor(os.cpu_count()) as pool:  # its threads wait for the programs
        return list(pool.map(task.judge, examples, answers))
