"""Encode records as documents, in one of three shapes: messages, a prompt and its completion, or text.

Knows columns, pieces of text and their token ids. Knows nothing of files, rows, or how long a document may be.
"""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import accumulate, chain, islice, pairwise
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from setblock.data.section import DataSection, SourceSection
from setblock.data.texts.chat import Piece, chat_pieces
from setblock.data.texts.records import SourceRecord, records_of
from setblock.errors import SetBlockError, prefixed


@dataclass(frozen=True)
class RecordShape:
    """Describe a record's shape: `messages`, `prompt and completion` or `text`, and the columns that hold it."""

    name: str
    columns: tuple[str, ...]


_SHAPES = {"messages": ("messages",), "prompt and completion": ("prompt", "completion"), "text": ("text",)}
"""By their names, the usual columns of each; the keys of a section that name others are these with `_column`."""

_Cut = tuple[list[Piece], bool, list[str] | None]
"""The pieces of a record, whether its text spells a special token, and what placeholders in the pieces represent, if any."""


@dataclass(frozen=True)
class Encoder:
    """Encode the records of one source as documents."""

    tokenizer: PreTrainedTokenizerBase  # chats are written by its template
    section: SourceSection  # names the columns; those it leaves open are found by their usual names
    data: DataSection  # says what carries loss, and what becomes of texts that spell special tokens

    @property
    def fingerprint(self) -> list[Any]:
        """Return what changes when the same records would be encoded otherwise."""
        columns = {name: value for name, value in self.section.model_dump().items() if name.endswith("_column")}
        return [_FORMAT, columns, self.data.loss_on, self.data.special_tokens, tokenizer_fingerprint(self.tokenizer)]

    def documents(self, shape: RecordShape, records: Iterable[SourceRecord]) -> Iterator[dict[str, Any]]:
        """Yield the documents of records of a shape, in order, with the columns of `FEATURES` (`setblock.data.corpus.corpus`).
        Raise `SetBlockError`, which names the record, if one has not the columns it should have, its chat can't be written,
        or it spells a special token where that is an error."""
        if self.tokenizer.eos_token_id is None:
            raise SetBlockError(
                "the tokenizer has no end-of-text token to close documents with: set eos_token in its tokenizer_config.json"
            )
        special = _special_tokens(self.tokenizer)
        records = iter(records)
        while chunk := list(islice(records, 256)):  # tokenizers work on many texts at once
            cut = [self._cut(record, shape, special) for record in chunk]
            yield from self._tokenised(chunk, cut, shape)

    def _cut(self, record: SourceRecord, shape: RecordShape, special: re.Pattern[str]) -> _Cut:
        with prefixed(record.where):
            values = [value_of(record, column, shape) for column in shape.columns]
            found = next((match[0] for text in _strings(values) if (match := special.search(text))), None)
            how = "keep" if found is None else self.data.special_tokens
            contents: list[str] | None = None
            if how == "error":
                raise SetBlockError(
                    f"its text contains the special token {found!r}: set data.special_tokens to spell (encode it as "
                    "letters, as in prompts), keep (encode it as the token) or drop (leave the document out)"
                )
            if how == "spell":
                values, contents = _held_apart(values, shape, special)
            pieces = [] if how == "drop" else self._pieces(values, shape, record.columns.get("tools"))
        return pieces, found is not None, contents

    def _pieces(self, values: list[Any], shape: RecordShape, tools: Any) -> list[Piece]:
        if shape.name == "messages":
            return chat_pieces(self.tokenizer, values[0], tools=tools, loss_on_all=self.data.loss_on == "all")
        *prompt, learned = values  # a text has no prompt
        return [*((each, self.data.loss_on == "all") for each in prompt), (learned, True)]

    def _tokenised(self, records: list[SourceRecord], cut: list[_Cut], shape: RecordShape) -> Iterator[dict[str, Any]]:
        is_chat = shape.name == "messages"
        first, last = ([], []) if is_chat else (_beginning(self.tokenizer), [self.tokenizer.eos_token_id])
        batch = [pieces for pieces, _, contents in cut if contents is None]
        ids = iter(_tokenise(self.tokenizer, [text for pieces in batch for text, _ in pieces]))
        whole = iter(_tokenise(self.tokenizer, ["".join(text for text, _ in pieces) for pieces in batch if is_chat]))
        for record, (pieces, spells_special, contents) in zip(records, cut, strict=True):
            if contents is not None:
                parts = [self._letters(text, contents) for text, _ in pieces]
            else:
                parts = list(islice(ids, len(pieces)))
                if is_chat:
                    with prefixed(record.where):
                        parts = self._as_read(pieces, parts, next(whole))
            carries = [flag for (_, flag), part in zip(pieces, parts, strict=True) for _ in part]
            token_ids = [*first, *(token for part in parts for token in part), *last]
            carries_loss = [pieces[0][1] if pieces else False] * len(first) + carries + [True] * len(last)
            digest = hashlib.blake2b(np.asarray(token_ids, dtype="<i4").tobytes(), digest_size=4).digest()
            yield {
                "token_ids": token_ids,
                "carries_loss": carries_loss,
                "where": record.where,
                "spells_special": spells_special,
                "bucket": int.from_bytes(digest),
                "length": len(token_ids),
                "targets": sum(carries_loss),
            }

    def _letters(self, text: str, contents: list[str]) -> list[int]:
        """Return the tokens of a text with `contents` in place of its placeholders, where special tokens are plain letters."""
        ids: list[int] = []
        for part, piece in enumerate(_PLACEHOLDER.split(text)):
            is_content = part % 2 == 1
            ids += _tokenise(self.tokenizer, [contents[int(piece)] if is_content else piece], plain=is_content)[0]
        return ids

    def _as_read(self, pieces: list[Piece], parts: list[list[int]], whole: list[int]) -> list[list[int]]:
        """Return the tokens of each piece of a chat as decoding has them, where a prompt is tokenised before its answer exists.
        For most tokenizers the pieces' tokens are the whole text's. Some write a piece differently where it begins a text
        (a space before it). Then the whole text's tokens are cut, if they can be. Where a token would reach over the end of a
        prompt (an answer that begins with a line break, after a prompt that ends in one), the pieces' tokens are right."""
        flat = [token for part in parts for token in part]
        if flat == whole:
            return parts
        beginnings = _tokenise(self.tokenizer, list(accumulate(text for text, _ in pieces)))
        if all(whole[: len(beginning)] == beginning for beginning in beginnings):
            return [whole[a:b] for a, b in pairwise([0, *map(len, beginnings)])]
        if self.tokenizer.decode(flat) == self.tokenizer.decode(whole):
            return parts
        raise SetBlockError(
            "the tokenizer joins the end of a prompt and the beginning of its answer in one token, and writes "
            "the answer differently alone: change the chat template, or set data.loss_on: all"
        )


_FORMAT = 1  # of the documents; another number where code here begins to give others
_PLACEHOLDER = re.compile("\ue000(\\d+)\ue001")


def _held_apart(values: list[Any], shape: RecordShape, special: re.Pattern[str]) -> tuple[list[Any], list[str]]:
    """Return values with placeholders for their texts, and the texts: a template's own text and its input stay separate."""
    if shape.name != "messages":
        return [f"\ue000{index}\ue001" for index in range(len(values))], values
    messages = [dict(message) if isinstance(message, dict) else message for message in values[0]]
    contents = []
    for message in messages:
        if isinstance(message, dict) and isinstance(message.get("content"), str):
            contents.append(message["content"])
            message["content"] = f"\ue000{len(contents) - 1}\ue001"
    left = next((match[0] for text in _strings(messages) if (match := special.search(text))), None)
    if left is not None:
        raise SetBlockError(
            f"{left!r} occurs outside of the content of a message, where it looks like the token: take it out"
        )
    return [messages], contents


def shaped(section: SourceSection, records: Iterable[SourceRecord]) -> tuple[RecordShape, Iterator[SourceRecord]]:
    """Return the shape whose columns a section names, or else the one whose usual columns the first record has; and all
    records. Raise `SetBlockError` if there is no record, or no such shape."""
    records = iter(records)
    first = next(records, None)
    if first is None:
        raise SetBlockError(f"data source {section.source} holds no documents: it must hold at least one")
    records = chain([first], records)
    for name, usual in _SHAPES.items():
        columns = tuple(getattr(section, f"{column}_column") for column in usual)
        if None not in columns:
            return RecordShape(name, columns), records
    found = [RecordShape(name, usual) for name, usual in _SHAPES.items() if first.columns.keys() >= set(usual)]
    if len(found) == 1:
        return found[0], records
    names = ", ".join(first.columns) or "none"
    if found:
        shapes = " as well as ".join(shape.name for shape in found)
        raise SetBlockError(f"{first.where}: its columns hold {shapes}; name the column to learn")
    raise SetBlockError(
        f"{first.where}: no messages, prompt and completion, or text among its columns ({names}); "
        "name them with messages_column, prompt_column and completion_column, or text_column"
    )


def value_of(record: SourceRecord, column: str, shape: RecordShape) -> Any:
    """Return what a column of a record holds, or raise `SetBlockError` if there is none, or it holds no text as it should."""
    if column not in record.columns:
        raise SetBlockError(f"no column {column!r} among {', '.join(record.columns) or 'none'}")
    value = record.columns[column]
    if shape.name != "messages" and not isinstance(value, str):
        raise SetBlockError(f"column {column!r} must hold text, not {json.dumps(value, default=str)[:40]}")
    return value


def _strings(value: Any) -> Iterator[str]:
    """Yield every text inside a record's value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        yield from (text for each in value.values() for text in _strings(each))
    elif isinstance(value, list):
        yield from (text for each in value for text in _strings(each))


def corpus_texts(section: DataSection) -> Iterator[str]:
    """Yield all that the columns of interest spell, for a tokenizer that is yet to be trained on it. A completion comes right
    after its prompt, as in a document. Raise `SetBlockError` if a source can't be read."""
    for source in section.sources:
        shape, records = shaped(source, records_of(source))
        between = "" if len(shape.columns) == 2 else "\n"
        for record in records:
            yield between.join(_strings([record.columns.get(column) for column in shape.columns]))


def _special_tokens(tokenizer: PreTrainedTokenizerBase) -> re.Pattern[str]:
    """Return a pattern of the special tokens' spellings, the longest first; nothing where there is no special token."""
    added = [token.content for token in tokenizer.added_tokens_decoder.values() if token.special and token.content]
    spelled = sorted({*added, *tokenizer.all_special_tokens}, key=lambda token: (-len(token), token))
    return re.compile("|".join(map(re.escape, spelled)) or r"(?!)")


def _beginning(tokenizer: PreTrainedTokenizerBase) -> list[int]:
    """Return what the tokenizer puts before any text: a beginning-of-text token, or nothing."""
    ids: list[int] = tokenizer("").input_ids
    return ids[:-1] if ids and ids[-1] == tokenizer.eos_token_id and ids[-1] != tokenizer.bos_token_id else ids


def _tokenise(tokenizer: PreTrainedTokenizerBase, texts: list[str], *, plain: bool = False) -> list[list[int]]:
    if not texts:
        return []
    return list(tokenizer(texts, add_special_tokens=False, split_special_tokens=plain, verbose=False).input_ids)


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of everything about a tokenizer that decides what it makes of a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    spelled = json.loads(backend.to_str()) if backend is not None else dict(sorted(tokenizer.get_vocab().items()))
    spelled |= {"truncation": None, "padding": None}  # of the last call, and no part of what it is
    spelling = json.dumps(spelled)
    parts = (type(tokenizer).__name__, spelling, str(tokenizer.chat_template), str(tokenizer.special_tokens_map))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
