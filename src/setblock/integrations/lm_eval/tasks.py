"""Find tasks of the harness by their names, ours among them, before any of their data is read.

Knows the harness's index of tasks. Knows nothing of models.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager
from lm_eval.tasks._index import Kind
from lm_eval.tasks._yaml_loader import load_yaml

from setblock.data.tasks.names import unknown_task
from setblock.errors import ParameterError, SetBlockError

SUITE = Path(__file__).parent / "suite"
"""The folder of our own tasks and groups; `--include_path` of the harness's own command takes it."""


def task_index(include_path: Path | None = None) -> TaskManager:
    """Return all tasks by name: the harness's, ours, and those of a folder of task files.

    Raises:
        ParameterError: there is no such folder.
    """
    if include_path is not None and not include_path.is_dir():
        raise ParameterError(f"--include-path must be a folder of task files, not {include_path}")
    return TaskManager(include_path=[SUITE] if include_path is None else [SUITE, include_path])


def matching_tasks(index: TaskManager, names: Iterable[str]) -> list[str]:
    """Return the names, with patterns such as `mmlu_*` replaced by what they match. A task file's path stays as it is.

    Raises:
        ParameterError: nothing goes by one of the names.
    """
    found: list[str] = []
    for name in names:
        matches = [name] if name.endswith(".yaml") and Path(name).is_file() else index.match_tasks([name])
        if not matches:
            raise unknown_task(name, index.all_tasks)
        found += matches
    return list(dict.fromkeys(found))


def check_confirmed(index: TaskManager, names: Iterable[str], *, confirmed: bool) -> None:
    """Refuse tasks that run code which the model wrote, unless that was confirmed.

    The one place where such tasks are let through: what runs their code in a sandbox can be asked for here.

    Raises:
        ParameterError: there is such a task.
    """
    for name in names:
        for task in _members(index, name):
            if not confirmed and _config(index, task).get("unsafe_code"):
                raise ParameterError(
                    f"task {task} runs code that the model wrote, on this machine and with your permissions; "
                    "--confirm-run-unsafe-code allows it"
                )


def load_tasks(index: TaskManager, names: Sequence[str]) -> list[Task | Group]:
    """Load tasks and groups with their data, which may be fetched from the hub.

    Raises:
        SetBlockError: the data or the file of one can't be read.
    """
    loaded: list[Task | Group] = []
    for name in names:
        try:
            found = index.load([name])
        except Exception as error:  # the harness, a task's own code and the data sets' library raise anything here
            line = (str(error).strip().splitlines() or [""])[0]
            raise SetBlockError(f"task {name} can't be loaded: {type(error).__name__}: {line}") from error
        groups = found.get("groups", {})
        loaded += [groups[name]] if name in groups else list(found["tasks"].values())
    return loaded


def silence_harness() -> None:
    """Keep the harness from telling what it does; what matters of it becomes an error or a warning of ours."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)


def _members(index: TaskManager, spec: Any) -> Iterator[str]:
    """Yield the names of the tasks that a name, an entry of a group or a list of these refers to, at any depth."""
    if isinstance(spec, list):
        for each in spec:
            yield from _members(index, each)
    elif isinstance(spec, dict):
        named = spec.get("group", spec.get("task"))
        yield from _members(index, named if named in index.task_index else spec.get("task"))
    elif isinstance(spec, str):
        entry, inner = index.task_index.get(spec), _config(index, spec).get("task")
        if entry is not None and entry.kind is Kind.TAG:
            yield from _members(index, sorted(entry.tags))
        elif isinstance(inner, list):
            yield from _members(index, inner)
        else:
            yield spec


def _config(index: TaskManager, name: str) -> dict[str, Any]:
    """Return what a task's or group's file holds, without running the code that it names."""
    entry = index.task_index.get(name)
    if entry is None and Path(name).is_file():
        return dict(load_yaml(Path(name), resolve_func=False))
    return {} if entry is None else dict(entry.cfg or {})
