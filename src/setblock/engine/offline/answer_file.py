"""Write a JSONL file of answers as they come, which survives an interruption and takes its name when it is whole.

Knows lines and files. Knows nothing of how answers are made.
"""

import json
from pathlib import Path
from types import TracebackType
from typing import Any

from setblock.errors import SetBlockError
from setblock.files import whole_lines, write_whole

Key = tuple[int, int]
"""Line of the prompt, and number of the sample."""


class AnswerFile:
    """Collect answers for the file `path`. Until all are there they are in `path` + `.part`, in the order in which they
    came, behind a line that says how they are made; a run that is made otherwise does not continue them."""

    def __init__(self, path: Path, *, made: dict[str, Any]) -> None:
        """Open the part, or raise `SetBlockError` if a whole file exists, a part was made otherwise, or the folder is
        missing."""
        self.path, self.part = path, path.with_name(f"{path.name}.part")
        self.done: set[Key] = set()
        if path.exists():
            raise SetBlockError(f"{path} exists already: name another file, or move it away")
        header = json.dumps(made, sort_keys=True)
        try:
            found, *lines = whole_lines(self.part) or [b""]
            if found.decode() not in ("", header):
                raise SetBlockError(
                    f"{self.part} was made with other prompts, settings or model: delete it to start again"
                )
            self._file = open(self.part, "ab")  # noqa: SIM115  # closed by `__exit__`
        except OSError as error:
            raise SetBlockError(f"can't write {self.part}: {error.strerror}") from error
        if not found:
            self._write(header)
        for answer in map(json.loads, lines):
            self.done.add((answer["line"], answer["sample"]))

    def add(self, key: Key, answer: dict[str, Any]) -> None:
        """Write an answer. It is there, or it is not, whenever the program ends."""
        self._write(json.dumps({"line": key[0], "sample": key[1], **answer}))
        self.done.add(key)

    def _write(self, line: str) -> None:
        self._file.write(line.encode() + b"\n")
        self._file.flush()

    def finish(self) -> None:
        """Sort the answers, which are all there, by their prompts, and give the file its name."""
        _, *lines = self.part.read_text().splitlines()
        ordered = sorted(map(json.loads, lines), key=lambda answer: (answer["line"], answer["sample"]))
        write_whole(self.path, "".join(json.dumps(answer) + "\n" for answer in ordered))
        self.part.unlink()

    def __enter__(self) -> "AnswerFile":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._file.close()
