"""Define tasks: what models are asked here and trained on. Each file of this folder is one task, or a family of them.

`TASKS` is the one table. A file enters it by having a variable `TASKS`: a tuple of `Task`. Nothing else need be changed, for
`setblock evaluate --task`, sweeps, calibrations, `evaluate_decoding` of a recipe, and `data.source` all read the table.
"""

from collections.abc import Iterator
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from setblock.data.tasks.task import (
    ChatExample,
    Example,
    Program,
    Task,
    TextExample,
    Verdict,
    split_path,
    task_of_file,
    unknown_task,
)


def _tasks_of_this_folder() -> Iterator[Task[Any]]:
    for module in iter_modules(__path__):
        yield from getattr(import_module(f"{__name__}.{module.name}"), "TASKS", ())


TASKS: dict[str, Task[Any]] = {task.name: task for task in _tasks_of_this_folder()}


def task_named(name: str) -> Task[Any]:
    """Return the task of a name, or of a file: `PATH` or `PATH:NAME` as `setblock.data.tasks.task` reads it. Raise
    `ParameterError`, which lists all, if there is none."""
    if name in TASKS:
        return TASKS[name]
    if (found := split_path(name)) is not None:
        return task_of_file(*found)
    raise unknown_task(name, TASKS)


def is_task(source: str) -> bool:
    """Return whether a source of data is a task, by its name or its file."""
    return source in TASKS or split_path(source) is not None


__all__ = ["TASKS", "ChatExample", "Example", "Program", "Task", "TextExample", "Verdict", "is_task", "task_named"]
