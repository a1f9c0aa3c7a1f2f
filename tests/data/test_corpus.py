"""Corpus and rows: every document is learned once, or is counted; the cache is used, and not beyond its time."""

import warnings
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from datasets.exceptions import DatasetGenerationError
from transformers import PreTrainedTokenizerBase

from data.conftest import CHATML, MARKED, chat
from setblock.data.corpus.corpus import CorpusRows, DocumentLimits
from setblock.data.corpus.tokenised import rows_of
from setblock.data.packing import IGNORE, PADDING
from setblock.data.section import DataSection
from setblock.data.texts import encoding
from setblock.data.texts.chat import use_chat_template
from setblock.data.texts.encoding import corpus_texts
from setblock.errors import SetBlockError, SetBlockWarning


@pytest.fixture
def rows(tokenizer: PreTrainedTokenizerBase) -> Any:
    """Rows of a section, given as keywords."""

    def made(
        *, context_length: int = 512, vocabulary: int | None = 300, mask_token_id: int | None = 1, **section: Any
    ) -> dict[str, CorpusRows]:
        return rows_of(
            DataSection(**{name: str(value) if isinstance(value, Path) else value for name, value in section.items()}),
            tokenizer,
            DocumentLimits(context_length, vocabulary=vocabulary, mask_token_id=mask_token_id),
        )

    return made


def pairs(count: int, *, longest: int = 5) -> list[dict[str, str]]:
    return [{"prompt": f"{i:03}", "completion": "x" * (1 + i % longest)} for i in range(count)]


def texts_in(rows: CorpusRows, tokenizer: PreTrainedTokenizerBase) -> list[str]:
    """The text of every document, in the order of the rows."""
    return [
        tokenizer.decode(row.input_ids[row.document_ids == document])
        for row in rows
        for document in range(row.document_ids.max() + 1)
    ]


def arrays(rows: CorpusRows) -> list[np.ndarray]:
    return [np.stack(list(vars(row).values())) for row in rows]


@pytest.mark.parametrize("row_length", [None, 20])
def test_every_document_is_in_one_row(rows, write, tokenizer, row_length):
    found = rows(source=write("a.jsonl", pairs(50)), row_length=row_length)["train"]
    texts = texts_in(found, tokenizer)
    assert sorted(texts) == [f"{i:03}" + "x" * (1 + i % 5) + "<|endoftext|>" for i in range(50)]
    assert len(found) == 50 if row_length is None else len(found) < 30
    for index in range(len(found)):
        where = found.where(index)
        assert [int(place.split("line ")[1]) - 1 for place in where] == [
            int(tokenizer.decode(found[index].input_ids[found[index].document_ids == d][:3])) for d in range(len(where))
        ]


def test_rows_are_the_same_again_and_from_the_cache(rows, write, monkeypatch):
    section = {"source": write("a.jsonl", pairs(40)), "row_length": 25}
    first = arrays(rows(**section)["train"])

    def fails(*_: object) -> None:
        raise AssertionError("tokenised once more")

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "tokenise", fails)
        second = arrays(rows(**section)["train"])
        rows(**section | {"row_length": 50, "too_long": "drop"})  # what is kept is decided after the cache
        with pytest.raises(DatasetGenerationError):
            rows(**section, loss_on="all")
    assert len(first) == len(second)
    assert all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def test_a_changed_file_is_tokenised_again(rows, write, tokenizer):
    before = rows(source=write("a.jsonl", pairs(3)))
    assert len(before["train"]) == 3
    assert len(rows(source=write("a.jsonl", pairs(4)))["train"]) == 4


def test_a_build_that_failed_leaves_nothing_behind(rows, write):
    path = write("a.jsonl", pairs(300))
    whole = path.read_bytes()
    path.write_bytes(whole + b"{")
    for _ in range(2):
        with pytest.raises(SetBlockError, match=r"a.jsonl, line 301: not JSON"):
            rows(source=path)
    path.write_bytes(whole)
    assert len(rows(source=path)["train"]) == 300


def test_a_cache_that_can_not_be_written_is_one_line(rows, write, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "file")
    with pytest.raises(SetBlockError, match=r"can't write tokenised documents to .*file"):
        rows(source=write("a.jsonl", pairs(3)))


@pytest.mark.parametrize("too_long", ["error", "drop", "truncate"])
def test_documents_that_are_too_long(rows, write, tokenizer, too_long):
    """Of tokens 3 + n + 1 with n of 1 to 5, two of five are longer than 7."""
    section = {"source": write("a.jsonl", pairs(50)), "row_length": 7, "too_long": too_long}
    if too_long == "error":
        with pytest.raises(SetBlockError, match=r"a.jsonl, line 4: the document has 8 tokens, .* has room for 7"):
            rows(**section)
        return
    became = {"drop": "dropped", "truncate": "truncated"}[too_long]
    message = rf"20 of 50 documents are longer than 7 tokens and were {became} .*; the first: .*a.jsonl, line 4"
    with pytest.warns(SetBlockWarning, match=message):
        found = rows(**section)["train"]
    counts = found.census
    assert (counts.documents, counts.too_long, counts.kept) == (50, 20, 30 if too_long == "drop" else 50)
    texts = texts_in(found, tokenizer)
    assert len(texts) == counts.kept
    assert sum(text.endswith("<|endoftext|>") for text in texts) == 30


def test_the_context_bounds_documents_where_rows_do_not(rows, write):
    with pytest.raises(
        SetBlockError, match="line 4: the document has 8 tokens, and a row or the model's context has room for 7"
    ):
        rows(source=write("a.jsonl", pairs(50)), context_length=7)


def test_what_is_cut_to_its_prompt_is_dropped_and_counted(rows, write):
    path = write("a.jsonl", [{"prompt": "a", "completion": "b"}, {"prompt": "abcdefg", "completion": "h"}])
    with pytest.warns(SetBlockWarning) as warned:
        found = rows(source=path, row_length=5, too_long="truncate")["train"]
    assert [
        "1 of 2 documents are longer" in str(warned[0].message),
        "have nothing that carries loss" in str(warned[1].message),
    ] == [
        True,
        True,
    ]
    assert found.census.kept == 1


def test_a_chat_without_an_answer_is_counted(rows, write, tokenizer):
    tokenizer.chat_template = CHATML
    path = write("a.jsonl", [{"messages": chat("a")}, {"messages": chat("a", "b")}])
    with pytest.warns(SetBlockWarning, match="1 of 2 documents have nothing that carries loss"):
        assert len(rows(source=path)["train"]) == 1


def test_special_tokens_are_dropped_and_counted(rows, write):
    path = write("a.jsonl", [{"text": "a<|endoftext|>"}, {"text": "b"}])
    with pytest.warns(SetBlockWarning, match="1 of 2 documents spell a special token and were dropped"):
        assert len(rows(source=path, special_tokens="drop")["train"]) == 1
    assert len(rows(source=path, special_tokens="keep")["train"]) == 2


def test_no_text_may_hold_the_mask_token(rows, write):
    path = write("a.jsonl", [{"text": "b"}, {"text": "a<|reserved_special_token_0|>"}])
    with pytest.raises(SetBlockError, match=r"a.jsonl, line 2: the document spells the mask token \(id 1\)"):
        rows(source=path, special_tokens="keep")


def test_ids_out_of_the_vocabulary(rows, write):
    path = write("a.jsonl", pairs(3))
    with pytest.raises(SetBlockError, match=r"a.jsonl, line 1: token id \d+ is out of the model's vocabulary, 0..19"):
        rows(source=path, vocabulary=20)
    rows(source=path, vocabulary=300)


def test_empty_data(rows, write):
    empty = {"source": write("empty.jsonl", []), "row_length": 9}
    with pytest.raises(SetBlockError, match=r"data source .*empty.jsonl holds no documents"):
        rows(**empty)
    with pytest.raises(SetBlockError, match="data: no documents are left: 3 of 3 documents are longer than 4 tokens"):
        rows(source=write("a.jsonl", pairs(3)), row_length=4, too_long="drop")


def test_held_out_documents(rows, write, tokenizer):
    """Together they are all, no text is on both sides, and neither depends on the others in the file."""
    path = write("a.jsonl", [*pairs(200), *pairs(100)])
    both = rows(source=path, evaluation_fraction=0.25)
    train, evaluation = (texts_in(side, tokenizer) for side in (both["train"], both["evaluation"]))
    assert len(train) + len(evaluation) == 300
    assert not set(train) & set(evaluation)
    assert 0.15 < len(evaluation) / 300 < 0.35
    fewer = rows(source=path, documents=100, evaluation_fraction=0.25)
    assert set(texts_in(fewer["evaluation"], tokenizer)) <= set(evaluation)


def test_evaluation_on_another_file(rows, write, tokenizer):
    both = rows(
        source=write("a.jsonl", [{"q": "a", "a": "b"}]),
        prompt_column="q",
        completion_column="a",
        evaluation={"source": str(write("b.jsonl", [{"q": "c", "a": "d"}, {"q": "e", "a": "f"}])), "documents": 1},
    )
    assert texts_in(both["train"], tokenizer) == ["ab<|endoftext|>"]
    assert texts_in(both["evaluation"], tokenizer) == ["cd<|endoftext|>"]
    both = rows(
        source=write("a.jsonl", [{"q": "a", "a": "b"}]),
        prompt_column="q",
        completion_column="a",
        evaluation={"source": str(write("c.jsonl", [{"text": "g"}])), "text_column": "text"},
    )
    assert texts_in(both["evaluation"], tokenizer) == ["g<|endoftext|>"]


def test_a_mixture_draws_by_weight_until_all_is_seen(rows, write, tokenizer):
    mixture = [
        {"source": str(write("a.jsonl", [{"text": f"a{i}"} for i in range(60)])), "weight": 3},
        {"source": str(write("b.jsonl", [{"prompt": f"b{i}", "completion": ""} for i in range(40)]))},
    ]
    found = texts_in(rows(mixture=mixture)["train"], tokenizer)
    assert set(found) == {f"a{i}<|endoftext|>" for i in range(60)} | {f"b{i}<|endoftext|>" for i in range(40)}
    assert 2.2 < sum(text.startswith("a") for text in found) / sum(text.startswith("b") for text in found) < 4
    assert texts_in(rows(mixture=mixture)["train"], tokenizer) == found
    assert texts_in(rows(mixture=mixture, seed=1)["train"], tokenizer) != found


def test_statistics_count_the_rows(rows, write):
    found = rows(source=write("a.jsonl", pairs(50)), row_length=20)["train"]
    counts = found.census
    assert counts.tokens == sum(int((row.document_ids != PADDING).sum()) for row in found)
    assert counts.targets == sum(int((row.labels != IGNORE).sum()) for row in found)
    assert found.padding == pytest.approx(1 - counts.tokens / (20 * len(found)))
    documents = [np.unique(row.document_ids[row.document_ids != PADDING]) for row in found]
    assert counts.kept == counts.documents == sum(map(len, documents))
    assert (counts.too_long, counts.special, counts.without_targets) == (0, 0, 0)


def test_texts_for_a_new_tokenizer(write):
    section = DataSection(source=str(write("a.jsonl", [{"messages": chat("Hi", "Hello")}])))
    assert list(corpus_texts(section)) == ["user\nHi\nassistant\nHello"]


def test_a_chat_template_of_ones_own(rows, write, tmp_path, tokenizer):
    path = str(tmp_path / "chat.jinja")
    with pytest.raises(SetBlockError, match=r"can't read data.chat_template .*chat.jinja: No such file"):
        use_chat_template(path, tokenizer)
    (tmp_path / "chat.jinja").write_text("\n{% if %")
    with pytest.raises(SetBlockError, match=r"data.chat_template .*chat.jinja, line 2: "):
        use_chat_template(path, tokenizer)
    for template in (CHATML, MARKED):
        (tmp_path / "chat.jinja").write_text(template)
        use_chat_template(path, tokenizer)
        assert tokenizer.chat_template == template


def test_nothing_is_said_where_nothing_is_left_out(rows, write):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rows(source=write("a.jsonl", pairs(9)), row_length=20)
