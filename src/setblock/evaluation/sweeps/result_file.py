"""Read and write the file of a sweep: a line of JSON for each result, the one of plain decoding first.

Knows what is whole in a file and what is not: a process may end in the middle of a line. Knows nothing of decoding.
"""

import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from setblock.decoding.settings.operating_point import NTP
from setblock.errors import SetBlockError, prefixed
from setblock.evaluation.result import Result, result_from_json
from setblock.files import differences, writing


def read_results(path: Path) -> list[Result]:
    """Return the results in a file, plain decoding's first. A last line that was not written to its end is left out. Raise
    `SetBlockError` if there is no such file, a line is no result, results are of different sweeps, or the first is not plain
    decoding's."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SetBlockError(f"can't read {path}: {error.strerror}") from error
    found = _parse(path, content[: _whole_length(content)])
    if not found:
        raise SetBlockError(f"{path} has no result of plain decoding: it is empty, or not a file of `setblock sweep`")
    return found


def changes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield what makes two runs different sweeps, with both values: another model, task, commit, or other shared settings or
    sources."""
    may_differ = ("model.name", "model.prepacked", "code.version")
    return (each for each in differences(theirs, ours) if each[0] not in may_differ)


@contextmanager
def open_results(path: Path | None) -> Iterator[tuple[list[Result], Callable[[Result], None]]]:
    """Open a file to continue it, or make it; yield what it holds, and a function that adds a result and sees it on the disk.
    What an interruption left of a last line is cut off. None keeps no file. Raise `SetBlockError` if it can't be written,
    another process writes to it, or as in `read_results`."""
    if path is None:
        yield [], lambda result: None
        return
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+b")
    with file:
        try:
            held = FileLock(path.with_name(f".{path.name}.lock")).acquire(blocking=False)
        except Timeout as error:
            raise SetBlockError(f"another process is writing to {path}: wait for it, or name another file") from error
        with held:
            file.seek(0)
            content = file.read()
            whole = _whole_length(content)
            results = _parse(path, content[:whole])  # before anything is cut off: it may be no sweep at all
            if whole < len(content):
                file.truncate(whole)
            elif whole and not content.endswith(b"\n"):
                file.write(b"\n")

            def add(result: Result) -> None:
                file.write(json.dumps(result.to_json(), allow_nan=False).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())

            yield results, add


def _whole_length(content: bytes) -> int:
    """Return how much of a file's content is whole lines; a last one may lack its end if it is JSON."""
    end = content.rfind(b"\n") + 1
    try:
        json.loads(content[end:])
    except ValueError:
        return end
    return len(content)


def _parse(path: Path, content: bytes) -> list[Result]:
    results: list[Result] = []
    for number, line in enumerate(content.splitlines(), start=1):
        where = f"{path}, line {number}"
        ntp = results[0] if results else None
        with prefixed(f"{where} is not a result of a sweep", ValueError):  # of JSON, of its encoding, or of a result
            result = result_from_json(json.loads(line), ntp=ntp)
        if ntp is None and result.point != NTP:
            raise SetBlockError(f"{where} must be plain decoding, method ntp")
        if not isinstance(result.run, dict) or (ntp is not None and any(changes(ntp.run, result.run))):
            raise SetBlockError(f"{where} is of another sweep than line 1")
        results.append(result)
    return results
