"""The encoding of records as documents: chats, prompts with their completions, or texts."""

import hashlib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import numpy as np
from transformers import PreTrainedTokenizerBase

from setblock.chat.messages import Chat, strings_of, without_nulls
from setblock.chat.special import Segment, special_tokens
from setblock.chat.template import closing_tokens
from setblock.chat.tokens import as_decoded, beginning, encode_segments, tokenise
from setblock.data.packing import Document
from setblock.data.section import DataSection, LossOn, SourceSection, SpecialTokens
from setblock.data.texts.chat import chat_pieces
from setblock.data.texts.records import SourceRecord, records_of
from setblock.data.texts.shapes import RecordShape, shaped, values_of
from setblock.errors import SetBlockError, warn

_MOST_FAULTS = 10  # that are named


@dataclass(frozen=True)
class _Cut:
    """The pieces of a record's text, each in segments with its mark of loss, and whether it spells a special token."""

    pieces: list[tuple[list[Segment], bool]]
    spells_special: bool

    @property
    def has_letters(self) -> bool:
        return any(letters for segments, _ in self.pieces for _, letters in segments)

    @property
    def texts(self) -> list[str]:
        return ["".join(text for text, _ in segments) for segments, _ in self.pieces]


@dataclass
class _Faults:
    """The faults of records, collected so that one error names the first few."""

    count: int = 0
    named: list[str] = field(default_factory=list)

    def add(self, record: SourceRecord, error: SetBlockError) -> None:
        self.count += 1
        if self.count <= _MOST_FAULTS:
            self.named.append(f"{record.where}: {error}")

    def raise_any(self, records: int) -> None:
        if self.count == 1:
            raise SetBlockError(self.named[0])
        if self.count:
            more = self.count - len(self.named)
            summary = "; ".join(self.named) + (f"; and {more} more" if more else "")
            raise SetBlockError(f"{self.count} of {records} records can't be used: {summary}")


@dataclass(frozen=True)
class Encoder:
    """An encoder of the records of one source as documents."""

    tokenizer: PreTrainedTokenizerBase  # chats are written by its template
    section: SourceSection  # names the columns; those it leaves open are found by their usual names
    data: DataSection  # says what carries loss, and what becomes of texts that spell special tokens

    @property
    def fingerprint(self) -> list[Any]:
        """Return a value that changes when the same records would be encoded differently."""
        columns = {name: value for name, value in self.section.model_dump().items() if name.endswith("_column")}
        return [_FORMAT, columns, self.data.loss_on, self.data.special_tokens, tokenizer_fingerprint(self.tokenizer)]

    def documents(self, shape: RecordShape, records: Iterable[SourceRecord]) -> Iterator[dict[str, Any]]:
        """Yield the documents of records of a shape, in order, with the columns of `FEATURES`
        (`setblock.data.corpus.corpus`). After the last one, raise `SetBlockError` if there were faults: it names the
        first records that lack columns, whose chat can't be rendered, or which spell a special token where that is an
        error."""
        if self.tokenizer.eos_token_id is None:
            raise SetBlockError(
                "the tokenizer has no end-of-text token to close documents with: set eos_token in its tokenizer_config.json"
            )
        if shape.is_chat and self.tokenizer.chat_template is not None and not closing_tokens(self.tokenizer):
            warn(
                "the chat template closes an answer with no special token, so a model does not learn from it where to stop"
            )
        special, faults, count = special_tokens(self.tokenizer), _Faults(), 0
        records = iter(records)
        while chunk := list(islice(records, 256)):  # tokenizers work on many texts at once
            count += len(chunk)
            cut = []
            for record in chunk:
                try:
                    cut.append((record, self._cut(values_of(record, shape), special)))
                except SetBlockError as error:
                    faults.add(record, error)
            for document in self._tokenised(cut, faults, is_chat=shape.is_chat):
                if not faults.count:
                    yield document
        faults.raise_any(count)

    def _cut(self, values: list[Any], special: re.Pattern[str]) -> _Cut:
        chat = values[0] if isinstance(values[0], Chat) else None
        texts = values if chat is None else [*strings_of(chat.messages), *strings_of(chat.tools)]
        found = next((match[0] for text in texts if (match := special.search(text))), None)
        how, on_all = "keep" if found is None else self.data.special_tokens, self.data.loss_on == "all"
        if how == "error":
            raise SetBlockError(
                f"its text contains the special token {found!r}: set data.special_tokens to spell (encode it as "
                "letters, as in prompts), keep (encode it as the token) or drop (leave the document out)"
            )
        if how == "drop":
            return _Cut([], True)
        if chat is not None:
            pieces = chat_pieces(self.tokenizer, chat, loss_on_all=on_all, apart=how == "spell")
        else:
            *prompt, learned = values  # a plain text has no prompt
            named = [*((each, on_all) for each in prompt), (learned, True)]
            pieces = [([(text, how == "spell")], carries_loss) for text, carries_loss in named]
        return _Cut(pieces, found is not None)

    def _tokenised(
        self, records: list[tuple[SourceRecord, _Cut]], faults: _Faults, *, is_chat: bool
    ) -> Iterator[dict[str, Any]]:
        first, last = ([], []) if is_chat else (beginning(self.tokenizer), [self.tokenizer.eos_token_id])
        plain = [cut.texts for _, cut in records if not cut.has_letters]
        ids = iter(tokenise(self.tokenizer, [text for texts in plain for text in texts]))
        whole = iter(tokenise(self.tokenizer, ["".join(texts) for texts in plain if len(texts) > 1]))
        for record, cut in records:
            try:
                if cut.has_letters:
                    parts = [
                        encode_segments(self.tokenizer, segments, inside=place > 0)
                        for place, (segments, _) in enumerate(cut.pieces)
                    ]
                else:
                    parts = list(islice(ids, len(cut.pieces)))
                    if len(parts) > 1:
                        parts = as_decoded(self.tokenizer, cut.texts, parts, next(whole))
            except SetBlockError as error:
                faults.add(record, error)
                continue
            carries = [flag for (_, flag), part in zip(cut.pieces, parts, strict=True) for _ in part]
            token_ids = [*first, *(token for part in parts for token in part), *last]
            carries_loss = [cut.pieces[0][1] if cut.pieces else False] * len(first) + carries + [True] * len(last)
            digest = hashlib.blake2b(np.asarray(token_ids, dtype="<i4").tobytes(), digest_size=4).digest()
            yield {
                "token_ids": token_ids,
                "carries_loss": carries_loss,
                "where": record.where,
                "spells_special": cut.spells_special,
                "bucket": int.from_bytes(digest),
                "length": len(token_ids),
                "targets": sum(carries_loss),
            }


def encode_records(
    tokenizer: PreTrainedTokenizerBase,
    records: Iterable[Mapping[str, Any]],
    *,
    loss_on: LossOn = "assistant",
    special_tokens: SpecialTokens = "error",
) -> Iterator[Document]:
    """Encode records as documents, as `setblock train` does those of a file. Raise `SetBlockError` in the same cases;
    it names the records by their numbers.

    Args:
        tokenizer: the model's; its chat template writes chats.
        records: mappings of one shape, with the columns `messages` (and `tools`), or `prompt` and `completion`, or another
            shape of docs/data.md.
        loss_on: see `DataSection`.
        special_tokens: see `DataSection`.
    """
    data = DataSection.model_validate({"source": "records", "loss_on": loss_on, "special_tokens": special_tokens})
    encoder = Encoder(tokenizer, data.sources[0], data)
    is_arrow = hasattr(records, "features")  # of `datasets`
    numbered = (
        SourceRecord(f"record {number}", without_nulls(each) if is_arrow else dict(each))
        for number, each in enumerate(records, start=1)
    )
    for document in encoder.documents(*shaped(encoder.section, numbered)):
        if not (document["spells_special"] and special_tokens == "drop"):
            yield Document(document["token_ids"], document["carries_loss"])


_FORMAT = 2  # version of the documents: change it when the code here makes other ones


def corpus_texts(section: DataSection) -> Iterator[str]:
    """Yield all texts of the columns of interest, to train a tokenizer on. A completion comes right after its prompt,
    as in a document. Raise `SetBlockError` if a source can't be read."""
    for source in section.sources:
        shape, records = shaped(source, records_of(source))
        between = "\n" if shape.is_chat or len(shape.columns) == 1 else ""
        for record in records:
            if record.fault is not None:
                raise SetBlockError(f"{record.where}: {record.fault}")
            yield between.join(strings_of([record.columns.get(column) for column in shape.columns], keys=False))


def tokenizer_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of all properties of a tokenizer that decide how it encodes a text."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    spelled = json.loads(backend.to_str()) if backend is not None else dict(sorted(tokenizer.get_vocab().items()))
    spelled |= {"truncation": None, "padding": None}  # state of the last call, not a property of the tokenizer
    spelling = json.dumps(spelled)
    parts = (type(tokenizer).__name__, spelling, str(tokenizer.chat_template), str(tokenizer.special_tokens_map))
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
