"""Turn tasks, files and hub data sets into documents, and documents into rows (docs/data.md, docs/tasks.md)."""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.data.packing import RowDataset, encode_pairs, pack, unpacked
    from setblock.data.tasks import Task, task_named

__all__ = ["RowDataset", "Task", "encode_pairs", "pack", "task_named", "unpacked"]

__getattr__, __dir__ = lazily(
    __name__, {"packing": "RowDataset encode_pairs pack unpacked", "tasks": "Task task_named"}
)
