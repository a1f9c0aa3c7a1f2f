"""The records of local files, hub data sets and tasks: one mapping of columns for each document, in order.

Reads files and the `datasets` library, and notes where each record came from; `setblock.data.texts.shapes` interprets
the columns.
"""

import glob
import gzip
import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from setblock.chat.messages import without_nulls
from setblock.data.section import DataSection, SourceSection
from setblock.data.tasks import is_task, task_named
from setblock.errors import MOST_CHARACTERS, SetBlockError, check_installed
from setblock.json_lines import read_json

SUFFIXES = (".jsonl", ".jsonl.gz", ".json", ".json.gz", ".parquet")


@dataclass(frozen=True)
class SourceRecord:
    """One record: its `columns`, such as the keys of a JSON object. `where` names it to a user: `chats.jsonl, line 12`.
    A `fault` says why it could not be read, so that the faults of all records can be reported together."""

    where: str
    columns: dict[str, Any]
    fault: str | None = None


@dataclass(frozen=True)
class FileRecords:
    """The records of local files, one file after the other."""

    files: list[Path]
    limit: int | None

    @property
    def fingerprint(self) -> list[Any]:
        """Return a value that changes when the files do: names, sizes and times of modification."""
        stats = [(path, path.stat()) for path in self.files]
        return [[str(path.resolve()), stat.st_size, stat.st_mtime_ns] for path, stat in stats] + [self.limit]

    def __iter__(self) -> Iterator[SourceRecord]:
        """Yield the records up to the limit. Raise `SetBlockError` if a file can't be read, or a line is not a JSON
        object."""
        of_files = (_parquet_rows(p) if p.name.endswith(".parquet") else _json_lines(p) for p in self.files)
        return islice(chain.from_iterable(of_files), self.limit)


class HubRecords:
    """The records of one split of a hub data set, which is downloaded."""

    def __init__(self, section: SourceSection) -> None:
        self.section = section
        check_installed("a data set of a hub", "datasets")
        from datasets import load_dataset

        with _reading(section.source, "there is no such file or folder, and the hub does not give it: "):
            dataset = load_dataset(section.source, name=section.name, split=section.split, revision=section.revision)
        self.dataset = dataset if section.documents is None else dataset.take(section.documents)

    @property
    def fingerprint(self) -> list[Any]:
        """Return a value that changes when the data set does, as `datasets` computes it."""
        return [self.section.source, self.section.split, self.dataset._fingerprint]

    def __iter__(self) -> Iterator[SourceRecord]:
        """Yield the records. Raise `SetBlockError` if the data set can't be read."""
        with _reading(self.section.source):
            for index, columns in enumerate(self.dataset):
                where = f"{self.section.source}, split {self.section.split}, row {index + 1}"
                yield SourceRecord(where, without_nulls(columns))


class TaskRecords:
    """The examples of a task (`setblock.data.tasks`), each with its answer."""

    def __init__(self, section: SourceSection) -> None:
        if section.documents is None:
            raise SetBlockError(
                f"data source {section.source} may be endless: set data.documents to the number of documents to take"
            )
        self.section, self.task = section, task_named(section.source)
        self.task.examples(section.split)  # raises for a split that it has not

    @property
    def fingerprint(self) -> list[Any]:
        """Return a value that changes when an example does: a hash of all, since code defines them."""
        digest = hashlib.sha256()
        for record in self:
            digest.update(json.dumps(record.columns).encode())
        return [self.section.source, digest.hexdigest()]

    def __iter__(self) -> Iterator[SourceRecord]:
        """Generate the examples again. Raise `SetBlockError` if an example has no answer to learn."""
        name, examples = self.section.source, self.task.examples(self.section.split, seed=self.section.seed)
        for number, example in enumerate(islice(examples, self.section.documents), start=1):
            where = f"{name}, number {number}"
            if example.answer is None:
                raise SetBlockError(f"{where} has no answer to train on: name a task with answers, or your own records")
            yield SourceRecord(where, example.record)


def records_of(section: SourceSection) -> FileRecords | HubRecords | TaskRecords:
    """Return the records of a source: of a task if it is a task's name or file, of local files if it names any, else of
    a hub data set. Raise `SetBlockError` if there is no such file, the data set can't be loaded, or the source may be
    endless."""
    if is_task(section.source):
        return TaskRecords(section)
    files = local_files(section.source)
    return HubRecords(section) if files is None else FileRecords(files, limit=section.documents)


def check_texts(section: DataSection) -> None:
    """Raise `SetBlockError` if a file, folder or task of a data section does not exist. Opens no file, and makes no
    request to a hub."""
    for own in section.parts.values():
        for each in own.sources:
            if is_task(each.source):
                TaskRecords(each)
            else:
                local_files(each.source)


def local_files(source: str) -> list[Path] | None:
    """Return the files that a file name, folder or glob pattern refers to, sorted; None if it can only be a hub id.
    Raise `SetBlockError` if it is a path or pattern without a readable file."""
    path = Path(source).expanduser()
    readable = f"a file of records ends in {', '.join(SUFFIXES)}"
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.name.endswith(SUFFIXES))
        if not files:
            raise SetBlockError(f"data source {source}: the folder has no file of records; {readable}")
        return files
    if not path.exists() and glob.has_magic(source):
        files = sorted(Path(match) for match in glob.glob(str(path), recursive=True) if Path(match).is_file())
        if not files:
            raise SetBlockError(f"data source {source}: no file matches")
    elif path.exists() or source.endswith(SUFFIXES) or source.startswith((".", "/", "~")):
        files = [path]
    else:
        return None
    for file in files:
        if not file.exists():
            raise SetBlockError(f"data source {source}: no such file")
        if not file.name.endswith(SUFFIXES):
            raise SetBlockError(f"data source {file}: {readable}")
    return files


def _json_lines(path: Path) -> Iterator[SourceRecord]:
    """Yield records without using `datasets`, which does not report which line is malformed, and gives every record the
    keys of all others, as nulls that chat templates then write."""
    opened = gzip.open if path.name.endswith(".gz") else open
    number = 0
    try:
        with opened(path, "rb") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                where = f"{path}, line {number}"
                if len(line) > MOST_CHARACTERS:  # too long for a tokenizer, and for nothing else
                    raise SetBlockError(
                        f"{where} has {len(line)} bytes: it must have at most {MOST_CHARACTERS}, so split it"
                    )
                try:
                    columns = read_json(line.rstrip())
                except ValueError as error:  # also of bytes that are not UTF-8
                    reason = str(error)
                    if isinstance(error, json.JSONDecodeError):
                        reason = f"{error.msg} at column {error.colno}"
                    yield SourceRecord(where, {}, f"not JSON ({reason}); a file must have one object per line")
                    continue
                if not isinstance(columns, dict):
                    yield SourceRecord(where, {}, f"a record must be a JSON object, not {json.dumps(columns)[:40]}")
                    continue
                yield SourceRecord(where, columns)
    except (OSError, EOFError) as error:  # both of them from gzip, too
        after = f" after line {number}" if number else ""
        raise SetBlockError(f"can't read {path}{after}: {getattr(error, 'strerror', None) or error}") from error


def _parquet_rows(path: Path) -> Iterator[SourceRecord]:
    check_installed("a Parquet file", "datasets")
    from datasets import load_dataset

    with _reading(str(path)):
        rows = load_dataset("parquet", data_files=[glob.escape(str(path))], split="train", streaming=True)
        for index, columns in enumerate(rows):
            yield SourceRecord(f"{path}, row {index + 1}", without_nulls(columns))


@contextmanager
def _reading(source: str, before: str = "") -> Iterator[None]:
    """Turn the errors of `datasets` about data that it can't find or read into a `SetBlockError`. It may raise
    anything, so this catches everything: only calls to `datasets` belong inside."""
    try:
        yield
    except (SetBlockError, GeneratorExit):
        raise
    except Exception as error:
        reason = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
        raise SetBlockError(f"can't load data source {source}: {before}{reason}") from error
