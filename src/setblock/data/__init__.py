"""Turn tasks, files and hub data sets into documents, and documents into rows (docs/data.md, docs/tasks.md)."""

from typing import TYPE_CHECKING

from setblock.lazy import lazily

if TYPE_CHECKING:
    from setblock.data.documents import encode_pairs
    from setblock.data.packing import RowDataset, pack, unpacked
    from setblock.data.tasks import Task, task_named

__all__ = ["RowDataset", "Task", "encode_pairs", "pack", "task_named", "unpacked"]

_HOMES = {
    "RowDataset": "setblock.data.packing",
    "Task": "setblock.data.tasks",
    "encode_pairs": "setblock.data.documents",
    "pack": "setblock.data.packing",
    "task_named": "setblock.data.tasks",
    "unpacked": "setblock.data.packing",
}
__getattr__, __dir__ = lazily(__name__, _HOMES)
