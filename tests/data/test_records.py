"""Records: every kind of file gives the same ones, in order, and says where what is wrong."""

import gzip
import json
from pathlib import Path
from typing import Any

import datasets
import pytest

from setblock.data.section import SourceSection
from setblock.data.texts import records as module
from setblock.data.texts.records import SourceRecord, local_files, records_of
from setblock.errors import SetBlockError

ROWS = [{"text": f"text {i}", "n": i} for i in range(5)]


def read(source: object, **options: Any) -> list[SourceRecord]:
    return list(records_of(SourceSection(source=str(source), **options)))


def test_every_format_gives_the_same_records(tmp_path, write):
    lines = write("a.jsonl", ROWS).read_bytes()
    (tmp_path / "a.json").write_bytes(lines)
    (tmp_path / "a.jsonl.gz").write_bytes(gzip.compress(lines))
    (tmp_path / "a.json.gz").write_bytes(gzip.compress(lines))
    datasets.Dataset.from_list(ROWS).to_parquet(tmp_path / "a.parquet")
    for suffix in module.SUFFIXES:
        found = read(tmp_path / f"a{suffix}")
        assert [record.columns for record in found] == ROWS, suffix
        assert [record.where for record in found] == [
            f"{tmp_path / 'a'}{suffix}, {'row' if suffix == '.parquet' else 'line'} {i + 1}" for i in range(5)
        ]


def test_folders_and_patterns_are_read_in_the_order_of_their_names(tmp_path, write):
    for name in ("b/2.jsonl", "b/1.jsonl", "c.jsonl"):
        write(name, [{"text": name}])
    (tmp_path / "b" / "readme.md").write_text("no records")
    assert [record.columns["text"] for record in read(tmp_path / "b")] == ["b/1.jsonl", "b/2.jsonl"]
    assert [record.columns["text"] for record in read(tmp_path / "**" / "*.jsonl")] == [
        "b/1.jsonl",
        "b/2.jsonl",
        "c.jsonl",
    ]


def test_only_the_first_documents(write):
    path = write("a.jsonl", ROWS)
    assert [record.columns for record in read(path, documents=2)] == ROWS[:2]
    assert len(read(path, documents=99)) == 5


def test_records_keep_the_keys_they_have(write):
    """No nulls for the keys that only other records have: a chat template would write them."""
    path = write("a.jsonl", [{"messages": [{"role": "user"}]}, {"messages": [{"role": "user", "name": "Ana"}]}])
    assert read(path)[0].columns == {"messages": [{"role": "user"}]}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b'{"text": "a"', "line 3: not JSON (Expecting ',' delimiter at column 13)"),
        (b'{"text": "\xff"}', "line 3: not JSON ('utf-8' codec can't decode"),
        (b"[1, 2]", "line 3: a record must be a JSON object, not [1, 2]"),
        (b"null", "line 3: a record must be a JSON object, not null"),
    ],
)
def test_a_malformed_line_is_named(tmp_path, line, said):
    path = tmp_path / "bad.jsonl"
    path.write_bytes(b'{"text": "a"}\n\n' + line + b'\n{"text": "b"}\n')
    first, wrong, last = read(path)
    assert (first.columns, last.columns) == ({"text": "a"}, {"text": "b"})
    assert f"{wrong.where}: {wrong.fault}".startswith(f"{path}, {said}")
    assert "\n" not in wrong.fault


def test_a_truncated_archive_is_named(tmp_path):
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes(gzip.compress(b"".join(b'{"text": "%d"}\n' % i for i in range(9)))[:-9])
    with pytest.raises(SetBlockError, match=r"can't read .*cut.jsonl.gz"):
        read(path)
    path.write_bytes(b"no archive")
    with pytest.raises(SetBlockError, match=r"can't read .*cut.jsonl.gz: Not a gzipped file"):
        read(path)


def test_a_broken_parquet_file_is_named(tmp_path):
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 no more")
    with pytest.raises(SetBlockError, match=r"can't load data source .*bad.parquet"):
        read(tmp_path / "bad.parquet")


@pytest.mark.parametrize(
    ("source", "said"),
    [
        ("./nothing", "data source ./nothing: no such file"),
        ("nothing.jsonl", "data source nothing.jsonl: no such file"),
        ("nothing/*.jsonl", "data source nothing/\\*.jsonl: no file matches"),
        ("{}", "the folder has no file of records; a file of records ends in .jsonl"),
        ("{}/a.csv", "a.csv: a file of records ends in .jsonl"),
    ],
)
def test_paths_that_lead_nowhere(tmp_path, source, said):
    (tmp_path / "a.csv").write_text("a,b")
    with pytest.raises(SetBlockError, match=said):
        local_files(source.format(tmp_path))


def test_hub_ids_go_to_the_library(monkeypatch):
    requested = {}

    def load_dataset(path, **options):
        requested.update(path=path, **options)
        return datasets.Dataset.from_list(ROWS)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    found = read("org/texts", name="small", split="test", revision="v1", documents=2)
    assert requested == {"path": "org/texts", "name": "small", "split": "test", "revision": "v1"}
    assert [record.columns for record in found] == ROWS[:2]
    assert found[1].where == "org/texts, split test, row 2"


def test_a_hub_that_can_not_be_reached_is_one_line():
    with pytest.raises(
        SetBlockError, match="can't load data source org/texts: there is no such file or folder, and"
    ) as e:
        read("org/texts")
    assert "\n" not in str(e.value)


def test_fingerprint_changes_with_the_file(write):
    def fingerprint() -> str:
        return json.dumps(records_of(SourceSection(source=str(path))).fingerprint)

    path: Path = write("a.jsonl", ROWS)
    before = fingerprint()
    assert fingerprint() == before
    write("a.jsonl", ROWS[:4])
    assert fingerprint() != before


def test_a_line_that_is_too_long_for_a_tokenizer(tmp_path, write, monkeypatch):
    path = write("a.jsonl", [{"text": "a"}, {"text": "b" * 40}])
    monkeypatch.setattr(module, "MOST_CHARACTERS", 30)
    with pytest.raises(SetBlockError, match=r"a\.jsonl, line 2 has \d+ bytes: it must have at most 30"):
        read(path)
