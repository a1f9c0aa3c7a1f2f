"""Stream documents that are read, tokenised and packed while training, without end.

Knows order: the same section gives the same rows, in the same order, however far a run got before it was interrupted. Knows
nothing of columns or templates.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from setblock.data.corpus.census import Census, DocumentLimits
from setblock.data.packing import Document, fill, row_item, row_of
from setblock.data.texts.encoding import EncodedDocument, Encoder
from setblock.data.texts.records import SourceRecord
from setblock.errors import SetBlockError, SetBlockWarning

_FRUITLESS = 10_000  # so many documents in a row of which none is kept: a source that will never give one


@dataclass(frozen=True)
class DocumentStream:
    """Yield the documents of several sources as they come: each source again and again, drawn by weight, and shuffled a
    little.

    `datasets` can mix and shuffle what streams, too, but in a worker of a data loader it draws otherwise than outside of one:
    a run could not continue with another number of workers.

    Attributes:
        sources: encoders, and the records each is to encode.
        weights: of the sources, against each other.
        shuffle_buffer: how many documents there are to draw the next one from.
    """

    sources: Sequence[tuple[Encoder, Iterable[SourceRecord]]]
    weights: Sequence[float]
    seed: int
    shuffle_buffer: int

    def __iter__(self) -> Iterator[EncodedDocument]:
        """Begin anew, or raise `SetBlockError` if a source is empty, or a record is not as it should be."""
        rng = np.random.default_rng(self.seed)
        buffer: list[EncodedDocument] = []
        for document in self._mixed(rng):
            if len(buffer) < self.shuffle_buffer:
                buffer.append(document)
                continue
            place = int(rng.integers(len(buffer)))
            yield buffer[place]
            buffer[place] = document

    def _mixed(self, rng: np.random.Generator) -> Iterator[EncodedDocument]:
        endless = [_endless(encoder, records) for encoder, records in self.sources]
        shares = np.array(self.weights) / sum(self.weights)
        while True:
            yield next(endless[int(rng.choice(len(endless), p=shares))])


def _endless(encoder: Encoder, records: Iterable[SourceRecord]) -> Iterator[EncodedDocument]:
    while True:
        yield from encoder.documents(records)


@dataclass(eq=False)
class RowStream(IterableDataset[dict[str, Tensor]]):
    """Yield packed rows without end, items as those of `setblock.data.packing.RowDataset`.

    `row_ids` count from 0. Transformers' `Trainer` resumes by reading the rows that were already learned once more, without
    learning them: exact, at the price of tokenising them again.

    Attributes:
        census: what has become of the documents so far. Those that are not kept whole are warned of, at ever longer
            intervals.
    """

    documents: Iterable[EncodedDocument]
    limits: DocumentLimits
    row_length: int
    pad_token_id: int
    census: Census = field(default_factory=Census, init=False)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        worker = get_worker_info()
        if worker is not None and worker.num_workers > 1:
            raise SetBlockError(
                f"streaming data is read by one process: dataloader_num_workers must be 0 or 1, not {worker.num_workers}"
            )
        self.census = Census()
        rows = fill(self._kept(), size=len, row_length=self.row_length)
        for index, documents in enumerate(rows):
            yield row_item(row_of(documents, row_length=self.row_length, pad_token_id=self.pad_token_id), index)

    def _kept(self) -> Iterator[Document]:
        fruitless, told = 0, 0
        for document in self.documents:
            where = document.where
            if not (document.spells_special and self.limits.drop_special):
                self.limits.refuse_ids(document.token_ids, where)
            length = self.census.judge(
                self.limits,
                length=len(document),
                targets=document.targets,
                spells_special=document.spells_special,
                where=partial(str, where),
            )
            altered = self.census.documents - self.census.whole
            if altered >= max(1, 2 * told):
                told = altered
                for complaint in self.census.complaints(self.limits):
                    warnings.warn(f"data, so far: {complaint}", SetBlockWarning, stacklevel=2)
            fruitless = 0 if length else fruitless + 1
            if fruitless == _FRUITLESS:
                raise SetBlockError(f"data: none of the last {fruitless} documents could be kept; the last: {where}")
            if length:
                yield Document(document.token_ids[:length], document.carries_loss[:length])
