"""JSON, and files of JSON lines that one run adds to and a later run continues."""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from setblock.errors import SetBlockError, prefixed
from setblock.files import differences, only_writer, write_whole, writing

MOST_NESTED = 100
"""The most levels of objects and lists in a JSON value. Deeper ones would exhaust the stack of code that reads, compares or
renders them."""


def read_json(text: str | bytes) -> Any:
    """Return the value of a JSON text. Raise `ValueError` if it is not JSON, or is nested deeper than `MOST_NESTED`."""
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError(_TOO_DEEP) from error
    brackets = (b"[", b"{") if isinstance(text, bytes) else ("[", "{")
    if sum(map(text.count, brackets)) > MOST_NESTED and _depth(value) > MOST_NESTED:  # type: ignore[arg-type]
        raise ValueError(_TOO_DEEP)
    return value


_TOO_DEEP = f"it is nested deeper than {MOST_NESTED} levels"


def _depth(value: Any) -> int:
    """Return the depth of nested objects and lists, without recursion."""
    depth, level = 0, [value]
    while level := [each for each in level if isinstance(each, dict | list)]:
        depth += 1
        level = [part for each in level for part in (each.values() if isinstance(each, dict) else each)]
    return depth


def json_line(value: Any) -> str:
    """Return a value as a line. JSON has no infinity: an infinite number becomes the string `inf`, as users type it."""
    text = json.dumps(_without_infinity(value), ensure_ascii=False, allow_nan=False)
    return text.encode("utf-8", "backslashreplace").decode() + "\n"  # half of a UTF-16 pair is escaped, as in JSON


def _without_infinity(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_infinity(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [_without_infinity(each) for each in value]
    return str(value) if isinstance(value, float) and math.isinf(value) else value


def read_lines(path: Path, content: bytes, *, what: str) -> tuple[list[Any], int]:
    """Return the values of the lines in a file's `content`, and the number of bytes of complete lines. A last line without a
    line break counts if it is complete. Raise `SetBlockError`, naming `what` a line should be, if another line is not JSON."""
    whole = content.rfind(b"\n") + 1
    values = []
    for number, line in enumerate(content[:whole].splitlines(), start=1):
        with prefixed(f"{path}, line {number} is not {what}", ValueError):
            values.append(read_json(line))
    try:
        values.append(read_json(content[whole:]))
    except ValueError:
        return values, whole
    return values, len(content)


class LinesFile:
    """A file of JSON lines that one process at a time adds to.

    Attributes:
        path: its path.
        values: the values of the lines that it had when it was opened.
    """

    def __init__(self, path: Path, *, what: str) -> None:
        """Open the file, or make it. Raise `SetBlockError` at once if another process writes to it, if it can't be written, or
        as `read_lines` does. An incomplete last line, left by an interruption, is removed when the first line is added."""
        self.path = path
        with ExitStack() as opened:
            with writing(path):
                path.parent.mkdir(parents=True, exist_ok=True)
                opened.enter_context(only_writer(path))
                self._file = opened.enter_context(path.open("a+b", buffering=0))
                self._file.seek(0)
                content = self._file.readall()
            self.values, self._whole = read_lines(path, content, what=what)
            self._is_torn, self._lacks_end = self._whole < len(content), content[self._whole - 1 : self._whole] != b"\n"
            self._opened = opened.pop_all()

    def add(self, value: Mapping[str, Any]) -> None:
        """Write a line and sync it to the disk. Raise `SetBlockError` if that fails."""
        line = json_line(value).encode()
        with writing(self.path):
            if self._is_torn:
                self._file.truncate(self._whole)
            elif self._whole and self._lacks_end:
                line = b"\n" + line
            self._is_torn = self._lacks_end = False
            while line:
                line = line[self._file.write(line) :]
            os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file and let other processes write to it. A file without any lines is deleted."""
        with self._opened:
            if self._file.seek(0, os.SEEK_END) == 0:
                self.path.unlink(missing_ok=True)

    def __enter__(self) -> "LinesFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_PART = "a line of such a file"


class PartFile:
    """The lines of a file that appears once all are written. Until then they are in PATH.part, after a first line that records
    how they are made."""

    def __init__(self, path: Path) -> None:
        """Open the part. Raise `SetBlockError` if the complete file exists, or as `LinesFile` does."""
        self.path = path
        self._refuse_existing()  # before anything is made
        self._part = LinesFile(path.with_name(f"{path.name}.part"), what=_PART)
        try:
            self._refuse_existing()  # another process may have finished it meanwhile
        except SetBlockError:
            self._part.close()
            raise

    def _refuse_existing(self) -> None:
        if self.path.exists():
            raise SetBlockError(f"{self.path} exists already: name another file, or move it away")

    def begin(self, made: Mapping[str, Any]) -> list[Any]:
        """Return the values of the lines that an earlier run left. Raise `SetBlockError`, naming the differences, if they were
        not `made` in the same way."""
        header = json.loads(json_line({"made": made}))
        if not self._part.values:
            self._part.add(header)
            return []
        (found, *values), self._part.values = self._part.values, []
        if found != header:
            before = found.get("made") if isinstance(found, dict) else None
            names = {each.partition(".")[0] for each, *_ in differences(before, header["made"])} - {""}
            changed = ", ".join(sorted(names)) or "settings"
            raise SetBlockError(f"{self._part.path} was made with other {changed}: delete it to start again")
        return values

    def add(self, value: Mapping[str, Any]) -> None:
        """Write a line; see `LinesFile.add`."""
        self._part.add(value)

    def finish(self, arranged: Callable[[list[Any]], Iterable[Any]]) -> None:
        """Write the complete file, with the values of all lines as arranged by `arranged`, and delete the part. Raise
        `SetBlockError` if that fails."""
        _, *values = read_lines(self._part.path, self._part.path.read_bytes(), what=_PART)[0]
        with writing(self.path):
            write_whole(self.path, "".join(map(json_line, arranged(values))))
            self._part.path.unlink()

    def close(self) -> None:
        """Close the part and keep it for a later run."""
        self._part.close()

    def __enter__(self) -> "PartFile":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
