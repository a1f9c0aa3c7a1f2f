"""Read tasks from a Python file, or a package, that is not part of this one.

Knows files. Knows nothing of any task in particular.
"""

from functools import cache
from pathlib import Path
from typing import Any

from setblock.data.tasks.task import Task, unknown_task
from setblock.errors import ParameterError
from setblock.files import module_of


def split_path(source: str) -> tuple[Path, str] | None:
    """Return the Python file that `PATH` or `PATH:NAME` names, and the task's name or an empty text. None for anything else.

    PATH ends in .py, or is a folder with `__init__.py`.
    """
    path, _, name = source.partition(".py:") if ".py:" in source else (source.removesuffix(".py"), "", "")
    if path != source:
        return Path(f"{path}.py").expanduser(), name
    folder, _, name = source.partition(":")
    package = Path(folder).expanduser() / "__init__.py"
    return (package, name) if package.is_file() else None


def task_of_file(path: Path, name: str) -> Task[Any]:
    """Return the task of a name in the variable `TASKS` of a Python file, whose code is run. Where no name is given: the
    only one, or the one that is named like the file or the package.

    Raises:
        ParameterError: there is no such file, task or variable, several tasks and no name, or the code fails.
    """
    tasks = _tasks(path.resolve())
    if not name and len(tasks) == 1:
        return next(iter(tasks.values()))
    if not name and (own := path.resolve().parent.name if path.name == "__init__.py" else path.stem) in tasks:
        return tasks[own]
    if not name:
        known = ", ".join(sorted(tasks))
        raise ParameterError(f"task must be {path}:NAME, since the file has {len(tasks)} tasks: {known}")
    if name not in tasks:
        raise unknown_task(name, tasks)
    return tasks[name]


@cache
def _tasks(path: Path) -> dict[str, Task[Any]]:
    tasks: tuple[Task[Any], ...] = getattr(module_of(path), "TASKS", ())
    if not tasks:
        raise ParameterError(f"{path} has no tasks: give it a variable TASKS, a tuple of setblock.data.Task")
    return {task.name: task for task in tasks}
