"""Make a task that nobody judges from a file of prompts: to compare settings with plain decoding, token for token."""

from collections.abc import Iterator
from pathlib import Path

from setblock.data.records import FileRecords
from setblock.data.splits import Split
from setblock.data.tasks import Task, TextExample
from setblock.errors import SetBlockError


def prompts_of_file(path: Path) -> Task[TextExample]:
    """Yield the task of a JSONL file, named like it: an object a line, with a text under `prompt`.

    Its examples raise `SetBlockError` where the file can't be read, or a line holds no prompt. It has one split, `test`.
    """

    def read(split: Split, seed: int) -> Iterator[TextExample]:
        if not path.is_file():
            raise SetBlockError(f"can't read {path}: no such file")
        for record in FileRecords([path], limit=None):
            prompt = record.columns.get("prompt")
            if not isinstance(prompt, str) or not prompt:
                raise SetBlockError(f'{record.where} must have a text under "prompt", not {prompt!r}')
            yield TextExample(prompt)

    return Task(path.stem, f"the prompts of {path.name}", read, splits=("test",))
