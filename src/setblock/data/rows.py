"""Make the rows that a recipe's data section gives a trainer.

Knows which stage follows which: records -> documents -> corpus or stream -> rows. Knows nothing of noise or models.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.data.census import Census, DocumentLimits
from setblock.data.chat import read_template
from setblock.data.corpus import Corpus, cached, mixed, refuse_ids
from setblock.data.encoding import Encoder, texts_of
from setblock.data.packing import Row, RowDataset, fill, row_of
from setblock.data.records import records_of
from setblock.data.section import DataSection
from setblock.data.stream import DocumentStream, RowStream


@dataclass(frozen=True)
class RecipeRows:
    """Hold the rows to train on and those to evaluate on, if there are any."""

    train: RowDataset | RowStream
    evaluation: RowDataset | None

    @property
    def fingerprint(self) -> str | None:
        """Return a hash of the documents to train on; None where they are not known beforehand."""
        rows = self.train.rows if isinstance(self.train, RowDataset) else None
        return rows.corpus.fingerprint if isinstance(rows, CorpusRows) else None


class CorpusRows(Sequence[Row]):
    """Make the rows of a corpus. Only which documents each holds is in memory: a row is made when it is asked for."""

    def __init__(self, corpus: Corpus, *, row_length: int | None, pad_token_id: int) -> None:
        self.corpus = corpus
        self._row_length = row_length
        self._pad_token_id = pad_token_id
        everything = range(len(corpus))
        if row_length is None:
            self._documents = [[index] for index in everything]
        else:
            self._documents = list(fill(everything, size=corpus.lengths.__getitem__, row_length=row_length))

    @property
    def census(self) -> Census:
        """Return what became of the corpus's documents."""
        return self.corpus.census

    @property
    def room(self) -> int:
        """Return how many tokens the rows have room for, all together."""
        return len(self) * self._row_length if self._row_length else self.census.tokens

    def __len__(self) -> int:
        return len(self._documents)

    def __getitem__(self, index: Any) -> Any:
        documents = [self.corpus[document] for document in self._documents[index]]
        row_length = self._row_length or len(documents[0])
        return row_of(documents, row_length=row_length, pad_token_id=self._pad_token_id)

    def where(self, index: int) -> list[str]:
        """Name the record of each document of a row."""
        return [self.corpus.where(document) for document in self._documents[index]]


def rows_of(
    section: DataSection,
    tokenizer: PreTrainedTokenizerBase,
    *,
    context_length: int,
    vocabulary: int | None = None,
    mask_token_id: int | None = None,
) -> RecipeRows:
    """Return the rows of a recipe's data section.

    Args:
        section: what the recipe says.
        tokenizer: the model's; chats are written by its template.
        context_length: tokens that the model's context has room for.
        vocabulary: how many ids the model has embeddings for.
        mask_token_id: the model's mask token, which no text may hold.

    Raises:
        SetBlockError: the data can't be read, or is not as the section says.
    """
    limits = DocumentLimits(
        longest=min(context_length, section.row_length or context_length),
        too_long=section.too_long,
        drop_special=section.special_tokens == "drop",
        vocabulary=vocabulary,
        mask_token_id=mask_token_id,
    )
    rows = partial(_corpus_rows, tokenizer=tokenizer, limits=limits)
    train = _stream(section, tokenizer, limits) if section.streaming else rows(section)
    own = section.evaluation_texts
    if own is not None:
        return RecipeRows(train, rows(own))
    return RecipeRows(train, rows(section, take_held_out=True) if section.evaluation_fraction else None)


def use_chat_template(section: DataSection, tokenizer: PreTrainedTokenizerBase) -> None:
    """Give the tokenizer the template that the section names, if it names one, so that it is saved with the model.

    Raises:
        SetBlockError: the file can't be read, or is no Jinja template.
    """
    if section.chat_template is not None:
        tokenizer.chat_template = read_template(section.chat_template)


def corpus_texts(section: DataSection) -> Iterator[str]:
    """Yield the texts of a section, for a tokenizer that is yet to be trained on them. Those of a mixture one source
    after another.

    Raises:
        SetBlockError: a source can't be read.
    """
    for source in section.sources:
        yield from texts_of(source, records_of(source, streaming=section.streaming))


def _encoders(section: DataSection, tokenizer: PreTrainedTokenizerBase) -> list[Encoder]:
    return [
        Encoder(tokenizer, source, loss_on=section.loss_on, special_tokens=section.special_tokens)
        for source in section.sources
    ]


def _corpus_rows(
    section: DataSection, *, tokenizer: PreTrainedTokenizerBase, limits: DocumentLimits, take_held_out: bool = False
) -> RowDataset:
    sources = []
    for encoder in _encoders(section, tokenizer):
        sources.append(cached(encoder, records_of(encoder.section), cache_dir=section.cache_dir))
        refuse_ids(sources[-1], limits)
    documents = mixed(sources, [source.weight for source in section.sources], seed=section.seed)
    held_out = section.evaluation_fraction or 0.0
    corpus = Corpus(documents, limits, held_out=held_out, take_held_out=take_held_out)
    return RowDataset(CorpusRows(corpus, row_length=section.row_length, pad_token_id=tokenizer.eos_token_id))


def _stream(section: DataSection, tokenizer: PreTrainedTokenizerBase, limits: DocumentLimits) -> RowStream:
    assert section.row_length is not None
    sources = [(encoder, records_of(encoder.section, streaming=True)) for encoder in _encoders(section, tokenizer)]
    documents = DocumentStream(
        sources,
        weights=[source.weight for source in section.sources],
        seed=section.seed,
        shuffle_buffer=section.shuffle_buffer,
    )
    return RowStream(documents, limits, row_length=section.row_length, pad_token_id=tokenizer.eos_token_id)
