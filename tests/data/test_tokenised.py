"""Tokenised data: the rows are those made without it, whoever tokenised them and however often it was stopped."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from setblock.data.corpus import corpus
from setblock.data.corpus.corpus import CorpusRows, DocumentLimits
from setblock.data.corpus.tokenised import rows_of, tokenise
from setblock.data.section import DataSection
from setblock.errors import SetBlockError

LIMITS: dict[str, Any] = {"context_length": 512, "vocabulary": 300, "mask_token_id": 1}


@pytest.fixture(autouse=True)
def small_shards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("setblock.data.corpus.tokenised.SHARD_DOCUMENTS", 8)


def texts(count: int, *, word: str = "x") -> list[dict[str, str]]:
    return [{"text": f"{i} " + word * (1 + i % 23)} for i in range(count)]


@pytest.fixture
def section(write: Any) -> Any:
    def made(kind: str = "fraction", **more: Any) -> DataSection:
        shapes: dict[str, dict[str, Any]] = {
            "fraction": {"source": str(write("a.jsonl", texts(100))), "evaluation_fraction": 0.1},
            "own evaluation": {
                "source": str(write("c.jsonl", texts(60))),
                "evaluation": {"source": str(write("e.jsonl", texts(9, word="e")))},
            },
            "mixture": {
                "mixture": [
                    {"source": str(write("d.jsonl", texts(50))), "weight": 2},
                    {"source": str(write("b.jsonl", texts(30, word="b")))},
                ],
                "evaluation_fraction": 0.1,
            },
            "unpacked": {"source": str(write("f.jsonl", texts(20))), "row_length": None},
        }
        return DataSection(**{"row_length": 64} | shapes[kind] | more)

    return made


def tokenised(section: DataSection, tokenizer: PreTrainedTokenizerBase, folder: Path, **more: Any) -> DataSection:
    tokenise(section, tokenizer, folder, limits=DocumentLimits(512), **more)
    return section.model_copy(update={"tokenised": str(folder)})


def assert_same(ours: dict[str, CorpusRows], theirs: dict[str, CorpusRows]) -> None:
    assert ours.keys() == theirs.keys() >= {"train"}
    for part, expected in theirs.items():
        found = ours[part]
        assert found.fingerprint == expected.fingerprint
        assert len(found) == len(expected)
        for a, b in zip(found, expected, strict=True):
            for name, column in vars(b).items():
                np.testing.assert_array_equal(getattr(a, name), column)
        assert found.census == expected.census
        assert found.where(len(found) - 1) == expected.where(len(found) - 1)


@pytest.mark.parametrize(
    ("kind", "processes"),
    [("fraction", 1), ("fraction", 3), ("own evaluation", 1), ("mixture", 2), ("unpacked", 1)],
)
def test_the_rows_are_those_made_without_the_folder(
    section: Any, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, kind: str, processes: int
) -> None:
    made = section(kind)
    ours = rows_of(
        tokenised(made, tokenizer, tmp_path / "out", processes=processes), tokenizer, DocumentLimits(**LIMITS)
    )
    assert_same(ours, rows_of(made, tokenizer, DocumentLimits(**LIMITS)))


def test_a_stopped_run_is_completed(section: Any, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    made, folder = section(), tmp_path / "out"
    there = tokenised(made, tokenizer, folder)
    shards = sorted(folder.glob("*.arrow"))
    assert len(shards) == 13
    (folder / "manifest.json").unlink()
    shards[5].unlink()
    (folder / "train-00-000005.writing").write_bytes(b"half")
    with pytest.raises(SetBlockError, match="holds no tokenised data, or a part of it: run `setblock data tokenise"):
        rows_of(there, tokenizer, DocumentLimits(**LIMITS))
    before = {path: path.stat().st_mtime_ns for path in shards if path.exists()}
    tokenised(made, tokenizer, folder)
    assert {path: path.stat().st_mtime_ns for path in before} == before
    assert_same(rows_of(there, tokenizer, DocumentLimits(**LIMITS)), rows_of(made, tokenizer, DocumentLimits(**LIMITS)))


def test_what_does_not_fit_is_refused_in_one_line(
    section: Any, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, write: Any
) -> None:
    made, folder = section(), tmp_path / "out"
    there = tokenised(made, tokenizer, folder)

    def refusal(section: DataSection = there, **limits: Any) -> str:
        with pytest.raises(SetBlockError) as caught:
            rows_of(section, tokenizer, DocumentLimits(**LIMITS | limits))
        assert "\n" not in str(caught.value)
        return str(caught.value)

    assert "was made with data.row_length 64, not 32" in refusal(there.model_copy(update={"row_length": 32}))
    assert "was made with longest_document 64, not 40" in refusal(context_length=40)
    assert "token id " in refusal(vocabulary=100, mask_token_id=None)
    used = int(rows_of(there, tokenizer, DocumentLimits(**LIMITS))["train"][0].input_ids[0])
    assert "spells the mask token" in refusal(mask_token_id=used)
    template, tokenizer.chat_template = tokenizer.chat_template, "{{ messages }}"
    assert "was made by another tokenizer or chat template" in refusal()
    tokenizer.chat_template = template

    shard = folder / "train-00-000003.arrow"
    os.truncate(shard, shard.stat().st_size - 1)
    assert "train-00-000003.arrow is missing or not whole" in refusal()
    shard.unlink()
    assert "train-00-000003.arrow is missing or not whole" in refusal()
    (folder / "manifest.json").write_text("{")
    assert "can't read manifest.json" in refusal()

    write("a.jsonl", texts(101))
    with pytest.raises(SetBlockError, match="holds data made of another records"):
        tokenised(made, tokenizer, folder)
    with pytest.raises(SetBlockError, match="holds something else"):
        tokenised(made, tokenizer, tmp_path)


def test_a_row_is_read_alone(
    section: Any, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is packed again, and no array of rows is in memory: each is mapped from its file."""
    there = tokenised(section(), tokenizer, tmp_path / "out")
    monkeypatch.setattr(corpus, "fill", None)
    rows = rows_of(there, tokenizer, DocumentLimits(**LIMITS))["train"]
    assert all(isinstance(values, np.memmap) for values in (rows.starts, rows.order, rows.lengths))


def test_the_folder_may_move(section: Any, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    made = section()
    there = tokenised(made, tokenizer, tmp_path / "out")
    expected = rows_of(made, tokenizer, DocumentLimits(**LIMITS))
    shutil.move(tmp_path / "out", tmp_path / "moved")
    (tmp_path / "a.jsonl").unlink()
    assert_same(
        rows_of(there.model_copy(update={"tokenised": str(tmp_path / "moved")}), tokenizer, DocumentLimits(**LIMITS)),
        expected,
    )
    assert json.loads((tmp_path / "moved" / "manifest.json").read_text())["census"]["train"]["documents"] > 80
