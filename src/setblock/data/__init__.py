"""Turn tasks, files and hub data sets into documents, and documents into rows (docs/data.md, docs/tasks.md)."""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.data.packing import RowDataset, pack, unpacked
    from setblock.data.tasks import Task, task_named
    from setblock.data.texts.encoding import encode_records

__all__ = ["RowDataset", "Task", "encode_records", "pack", "task_named", "unpacked"]

__getattr__, __dir__ = lazily(
    __name__,
    {"packing": "RowDataset pack unpacked", "tasks": "Task task_named", "texts.encoding": "encode_records"},
)
