"""Texts to copy drafts from: how they are read, and that they come and go with a checkpoint."""

import copy
import gzip
import json

import pytest
from transformers import PreTrainedTokenizerBase

import setblock
from families import tiny_sbd
from setblock.errors import SetBlockError
from setblock.model.protocol.draft_text import DRAFT_TEXT_FILE, draft_text_of, indexed, read_texts

LINES = [
    "a text",
    {"text": "another"},
    {"prompt": "never this", "completion": "a third"},
    {"messages": [{"role": "user", "content": "nor this"}, {"role": "assistant", "content": "a fourth\nof two lines"}]},
]
TEXTS = ["a text", "another", "a third", "a fourth\nof two lines"]


def test_texts_are_read_from_all_kinds_of_lines_packed_or_not(tmp_path):
    content = "\n".join(map(json.dumps, LINES)) + "\n\n"
    plain, packed = tmp_path / "a.jsonl", tmp_path / "a.jsonl.gz"
    plain.write_text(content)
    packed.write_bytes(gzip.compress(content.encode()))
    assert list(read_texts(plain)) == list(read_texts(packed)) == TEXTS


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'"whole"\n{', "line 2 is not JSON"),
        (b'{"prompt": "a"}', "line 1 must be a text"),
        (b'{"messages": [{"role": "assistant"}]}', "line 1 must be a text"),
        (b"17", "line 1 must be a text"),
        (b"\xff\xfe", "JSON Lines in UTF-8"),
        (b'"\\ud83d"', "half of a character"),
    ],
)
def test_other_files_are_refused_in_one_line(tmp_path, content, message):
    path = tmp_path / "answers.jsonl"
    path.write_bytes(content)
    with pytest.raises(SetBlockError, match=message) as error:
        list(read_texts(path))
    assert "\n" not in str(error.value)
    with pytest.raises(SetBlockError, match="No such file"):
        list(read_texts(tmp_path / "missing.jsonl"))
    with pytest.raises(SetBlockError, match="can't read draft text"):
        list(read_texts(path.rename(tmp_path / "no_archive.gz")))


def test_a_damaged_archive_is_refused(tmp_path):
    path = tmp_path / "a.jsonl.gz"
    packed = gzip.compress(json.dumps("a text" * 100).encode())
    for damaged in (packed[:-9], packed[:12] + b"\xff\xff" + packed[14:]):
        path.write_bytes(damaged)
        with pytest.raises(SetBlockError, match="packed by gzip"):
            list(read_texts(path))


def test_lines_end_at_line_feeds_alone(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(
        "\ufeff" + json.dumps("one\u2028two\x85three", ensure_ascii=False) + "\r\n" + '"four"', encoding="utf-8"
    )
    assert list(read_texts(path)) == ["one\u2028two\x85three", "four"]


def test_turns_that_call_tools_have_no_text(tmp_path):
    path, call = tmp_path / "a.jsonl", {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}
    path.write_text(json.dumps({"messages": [call, {"role": "assistant", "content": "done"}]}))
    assert list(read_texts(path)) == ["done"]


def test_what_can_not_be_used_is_refused(tmp_path, trained_tokenizer: PreTrainedTokenizerBase):
    sbd = tiny_sbd("llama", trained_tokenizer)
    with pytest.raises(SetBlockError, match="more than 4 tokens, not 0"):
        draft_text_of([], sbd)
    with pytest.raises(SetBlockError, match="more than 4 tokens, not 3"):
        indexed([[1, 2], [3]])
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(SetBlockError, match="more than 4 tokens, not 0"):
        sbd.save(tmp_path / "model", draft_text=tmp_path / "empty.jsonl")
    assert not (tmp_path / "model").exists()
    sbd.tokenizer = copy.deepcopy(sbd.tokenizer)  # other tests have it, too
    sbd.tokenizer.add_tokens(["<new>"])
    with pytest.raises(SetBlockError, match=f"the model knows {sbd.vocab_size}"):
        draft_text_of(["a text with <new> in it, and more"], sbd)


def test_a_checkpoint_has_its_texts_until_it_is_saved_without(tmp_path, trained_tokenizer: PreTrainedTokenizerBase):
    sbd, source = tiny_sbd("llama", trained_tokenizer), tmp_path / "texts.jsonl"
    source.write_text("\n".join(map(json.dumps, LINES)))
    sbd.save(tmp_path / "model", draft_text=source)
    found, wanted = setblock.load(tmp_path / "model").draft_text, draft_text_of(TEXTS, sbd)
    assert found is not None
    assert found.token_ids.tolist() == wanted.token_ids.tolist()
    assert all(text in trained_tokenizer.decode(found.token_ids) for text in TEXTS)
    assert found.token_ids.tolist().count(sbd.end_of_text_ids[0]) == len(TEXTS)
    sbd.save(tmp_path / "model")
    assert not (tmp_path / "model" / DRAFT_TEXT_FILE).exists()
    assert setblock.load(tmp_path / "model").draft_text is None
