"""A stream: documents that are read, tokenised and packed while training, without end.

Knows order: the same section gives the same rows, in the same order, however far a run got before it was interrupted. Knows
nothing of columns or templates.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import datasets
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from setblock.data.corpus import FEATURES, columns_of
from setblock.data.documents import Document
from setblock.data.encoding import Encoder
from setblock.data.limits import Census, Limits
from setblock.data.packing import fill, row_item, row_of
from setblock.data.records import FileRecords, HubRecords
from setblock.errors import SetBlockError, SetBlockWarning

_FRUITLESS = 10_000  # so many documents in a row of which none is kept: a source that will never give one


def streamed(
    sources: Sequence[tuple[Encoder, FileRecords | HubRecords]],
    weights: Sequence[float],
    *,
    seed: int,
    shuffle_buffer: int,
) -> datasets.IterableDataset:
    """The documents of several sources as they come, each source again and again, drawn by weight and shuffled a little.

    Raises:
        SetBlockError: while it is read: a source is empty, or a record is not as it should be.
    """
    endless = [
        datasets.IterableDataset.from_generator(
            _encoded, features=FEATURES, gen_kwargs={"encoder": encoder, "records": records}
        ).repeat(None)
        for encoder, records in sources
    ]
    shares = [weight / sum(weights) for weight in weights]
    mixture = datasets.interleave_datasets(endless, shares, seed=seed) if len(endless) > 1 else endless[0]
    return mixture.shuffle(seed=seed, buffer_size=shuffle_buffer)


def _encoded(encoder: Encoder, records: FileRecords | HubRecords) -> Iterator[dict[str, Any]]:
    empty = True
    for document in encoder.documents(records):
        empty = False
        yield columns_of(document)
    if empty:  # else it would be begun again for ever
        raise SetBlockError(f"data source {encoder.section.source} holds no documents")


class RowStream(IterableDataset[dict[str, Tensor]]):
    """Packed rows without end, items as those of `setblock.data.packing.RowDataset`.

    `row_ids` count from 0. Transformers' `Trainer` resumes by reading the rows that were already learned once more, without
    learning them: exact, at the price of tokenising them again.

    Attributes:
        census: what has become of the documents so far. Those that are not kept whole are warned of, at ever longer
            intervals.
    """

    def __init__(
        self, documents: Callable[[], datasets.IterableDataset], limits: Limits, *, row_length: int, pad_token_id: int
    ) -> None:
        self._documents = documents
        self.limits = limits
        self.row_length = row_length
        self.pad_token_id = pad_token_id
        self.census = Census()

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
        for document in self._documents():
            token_ids, carries_loss, where = document["token_ids"], document["carries_loss"], document["where"]
            if not (document["spells_special"] and self.limits.drop_special):
                self.limits.refuse_ids(max(token_ids, default=0), self.limits.mask_token_id in token_ids, where)
            length = self.census.judge(
                self.limits,
                length=len(token_ids),
                targets=partial(_targets_within, carries_loss),
                spells_special=document["spells_special"],
                where=partial(str, where),
            )
            if self.census.documents - self.census.whole >= 2 * max(told, 0.5):
                told = self.census.documents - self.census.whole
                for complaint in self.census.complaints(self.limits):
                    warnings.warn(f"data, so far: {complaint}", SetBlockWarning, stacklevel=2)
            fruitless = 0 if length else fruitless + 1
            if fruitless == _FRUITLESS:
                raise SetBlockError(f"data: none of the last {fruitless} documents could be kept; the last: {where}")
            if length:
                yield Document(token_ids[:length], carries_loss[:length])


def _targets_within(carries_loss: list[bool], kept: int) -> int:
    return sum(carries_loss[:kept])
