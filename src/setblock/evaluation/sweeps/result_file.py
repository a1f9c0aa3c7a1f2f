"""The file of a sweep: a line of JSON for each result, plain decoding's first."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from setblock.decoding.settings.resolve import NTP
from setblock.errors import SetBlockError, prefixed
from setblock.evaluation.result import Result, result_from_json
from setblock.files import differences
from setblock.json_lines import LinesFile, read_lines


def read_results(path: Path) -> list[Result]:
    """Return the results in a file, plain decoding's first. An incomplete last line is left out. Raise `SetBlockError` if there
    is no such file, a line is not a result, results are of different sweeps, or the first is not plain decoding's."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise SetBlockError(f"can't read {path}: {error.strerror}") from error
    found = _results(path, read_lines(path, content, what=_RESULT)[0])
    if not found:
        raise SetBlockError(f"{path} has no result of plain decoding: it is empty, or not a file of `setblock sweep`")
    return found


def changes(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the name and both values of each difference that makes two runs different sweeps: in the model, task, commit,
    shared settings or sources."""
    may_differ = ("model.name", "model.prepacked", "code.version")
    return (each for each in differences(theirs, ours) if each[0] not in may_differ)


@contextmanager
def open_results(path: Path | None) -> Iterator[tuple[list[Result], Callable[[Result], None]]]:
    """Open a file to continue it, or create it. Yield its results and a function that appends a result and syncs it to disk.
    The first append cuts off an incomplete last line. With None there is no file. Raise `SetBlockError` if the file can't be
    written, another process writes to it, or as in `read_results`."""
    if path is None:
        yield [], lambda result: None
        return
    with LinesFile(path, what=_RESULT) as file:
        yield _results(path, file.values), lambda result: file.add(result.to_json())


_RESULT = "a result of a sweep"


def _results(path: Path, lines: list[Any]) -> list[Result]:
    results: list[Result] = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}, line {number}"
        ntp = results[0] if results else None
        with prefixed(f"{where} is not {_RESULT}"):
            result = result_from_json(line, ntp=ntp)
        if ntp is None and result.point != NTP:
            raise SetBlockError(f"{where} must be plain decoding, method ntp")
        if not isinstance(result.run, dict) or (ntp is not None and any(changes(ntp.run, result.run))):
            raise SetBlockError(f"{where} is of another sweep than line 1")
        results.append(result)
    return results
