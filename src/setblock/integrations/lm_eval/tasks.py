"""Find tasks of the harness by their names, ours among them.

Knows the harness's index of tasks. Knows nothing of models.
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path

from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.tasks import TaskManager

from setblock.data.tasks.names import unknown_task
from setblock.errors import ParameterError, SetBlockError

SUITE = Path(__file__).parent / "suite"
"""The folder of our own tasks and groups; `--include_path` of the harness's own command takes it."""


def task_index(include_path: Path | None) -> TaskManager:
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


def load_tasks(index: TaskManager, names: Sequence[str], *, confirmed: bool) -> list[Task | Group]:
    """Load tasks and groups with their data, which may be fetched from the hub.

    Args:
        confirmed: whether tasks may run code that the model wrote. What runs it in a sandbox needs no confirmation.

    Raises:
        ParameterError: a task runs such code, and that was not confirmed.
        SetBlockError: the data or the file of one can't be read.
    """
    loaded: list[Task | Group] = []
    for name in names:
        try:
            found = index.load([name])
        except Exception as error:  # the harness, a task's own code and the data sets' library raise anything here
            line = (str(error).strip().splitlines() or [""])[0]
            raise SetBlockError(f"task {name} can't be loaded: {type(error).__name__}: {line}") from error
        for task, each in found["tasks"].items():
            if getattr(each, "UNSAFE_CODE", False) and not confirmed:
                raise ParameterError(
                    f"task {task} runs code that the model wrote, on this machine and with your permissions; "
                    "--confirm-run-unsafe-code allows it"
                )
        groups = found.get("groups", {})
        loaded += [groups[name]] if name in groups else list(found["tasks"].values())
    return loaded


def silence_harness() -> None:
    """Keep the harness from reporting what it does; what matters of it becomes an error or a warning of ours."""
    logging.getLogger("lm_eval").setLevel(logging.ERROR)
