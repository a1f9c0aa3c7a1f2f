"""The tasks that models are evaluated and trained on. Each file of this folder has one task, or a family of them.

`TASKS` is the table of all tasks. A file adds its tasks to it by a variable `TASKS`: a tuple of `Task`. Nothing else
needs changing: `setblock evaluate --task`, sweeps, calibrations, `evaluate_decoding` of a recipe, and `data.source` all
read the table.
"""

from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

from setblock.data.tasks.task import ChatExample, Example, Task, TextExample, Verdict
from setblock.errors import ParameterError, did_you_mean
from setblock.files import module_of


def _tasks_of_this_folder() -> Iterator[Task[Any]]:
    for module in iter_modules(__path__):
        yield from getattr(import_module(f"{__name__}.{module.name}"), "TASKS", ())


TASKS: dict[str, Task[Any]] = {task.name: task for task in _tasks_of_this_folder()}


_MOVED = {"humaneval": "tasks/humaneval"}
"""Earlier names of tasks, and what takes their place."""


def task_named(name: str) -> Task[Any]:
    """Return the task of a name, or of a file: `PATH` or `PATH:NAME`. Without a NAME, it is the file's only task, or
    the one named like the file or the package. Raise `ParameterError` if there is no such task, or the file's code
    fails."""
    tasks = TASKS
    if name not in TASKS and (found := split_path(name)) is not None:
        path, name = found
        tasks = tasks_of_file(path.resolve())
        own = path.resolve().parent.name if path.name == "__init__.py" else path.stem
        name = name or (next(iter(tasks)) if len(tasks) == 1 else own)
        if name not in tasks and not found[1]:
            hint = f"since the file has {len(tasks)} tasks: {', '.join(sorted(tasks))}"
            raise ParameterError(f"task must be {path}:NAME, {hint}")
    if name in _MOVED and tasks is TASKS:
        raise ParameterError(f"the task {name} is a folder of the repository now: {_MOVED[name]}")
    if name not in tasks:
        known = sorted(tasks)
        raise ParameterError(f"there is no task {name!r}{did_you_mean(name, known)}; there are {', '.join(known)}")
    return tasks[name]


def is_task(source: str) -> bool:
    """Return whether a source of data is a task, given by its name or its file."""
    return source in TASKS or split_path(source) is not None


def split_path(source: str) -> tuple[Path, str] | None:
    """Return the Python file that `PATH` or `PATH:NAME` names, and the task's name or an empty text. PATH ends in .py, or is a
    folder with `__init__.py`; None for anything else."""
    path, _, name = source.partition(".py:") if ".py:" in source else (source.removesuffix(".py"), "", "")
    if path != source:
        return Path(f"{path}.py").expanduser(), name
    folder, _, name = source.partition(":")
    package = Path(folder).expanduser() / "__init__.py"
    return (package, name) if package.is_file() else None


@cache
def tasks_of_file(path: Path) -> dict[str, Task[Any]]:
    """Run a Python file and return the tasks in its variable `TASKS`, by name. Raise `ParameterError` if there is no
    such file or variable, or the code fails."""
    tasks: tuple[Task[Any], ...] = getattr(module_of(path), "TASKS", ())
    if not tasks:
        raise ParameterError(f"{path} has no tasks: give it a variable TASKS, a tuple of setblock.data.Task")
    return {task.name: task for task in tasks}


__all__ = ["TASKS", "ChatExample", "Example", "Task", "TextExample", "Verdict", "is_task", "task_named"]
