"""Packing: documents (token sequences with marks for the tokens that carry loss) are joined into rows of one length.

A row records the document of each token, and its position there; the attention masks are made from these later.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from setblock.errors import SetBlockError

IGNORE = -100
"""Label of a token that carries no loss (the convention of PyTorch's cross entropy)."""

PADDING = -1
"""Document id of a row's padding."""


@dataclass(frozen=True)
class Document:
    """One sequence to train on. `carries_loss[i]` says whether token i is a target: tokens of a prompt are not, and
    those of a completion are, including its end-of-text."""

    token_ids: Sequence[int]
    carries_loss: Sequence[bool]

    def __post_init__(self) -> None:
        assert len(self.token_ids) == len(self.carries_loss)

    def __len__(self) -> int:
        return len(self.token_ids)


@dataclass(frozen=True)
class Row:
    """Packed documents: four int32 arrays of one length. `labels[i]` is the token at i, or `IGNORE`: the loss
    shifts."""

    input_ids: np.ndarray
    labels: np.ndarray
    position_ids: np.ndarray
    document_ids: np.ndarray


def fill(sizes: Iterable[int], *, row_length: int) -> Iterator[list[int]]:
    """Yield the indices of the items of each row: each item goes into the first open row that has room for its size.
    Rows come in the order in which they were opened, each as soon as it is closed. No item may be larger than a row."""
    rows: deque[list[int]] = deque()
    room: deque[int] = deque()
    for number, size in enumerate(sizes):
        assert size <= row_length
        row = next((r for r, free in enumerate(room) if free >= size), len(room))
        if row == len(room):
            rows.append([])
            room.append(row_length)
        rows[row].append(number)
        room[row] -= size
        if len(rows) > _OPEN_ROWS:
            room.popleft()
            yield rows.popleft()
    yield from rows


_OPEN_ROWS = 32  # how far back a document may still be placed: a bound on time, and on how far order is disturbed


def pack(documents: Iterable[Document], *, row_length: int, pad_token_id: int) -> list[Row]:
    """Pack documents into rows of `row_length` tokens, deterministically (`fill`). Raise `SetBlockError` if a document
    is longer."""
    documents = list(documents)
    for index, document in enumerate(documents):
        if len(document) > row_length:
            raise SetBlockError(
                f"document {index} has {len(document)} tokens, more than row_length {row_length}: raise "
                "row_length, or cut the document"
            )
    rows = ([documents[number] for number in row] for row in fill(map(len, documents), row_length=row_length))
    return [row_of(row, row_length=row_length, pad_token_id=pad_token_id) for row in rows]


def unpacked(documents: Iterable[Document]) -> list[Row]:
    """Make one row for each document, with the length of the document. The collator pads a batch to its longest row."""
    return [row_of([document], row_length=len(document), pad_token_id=0) for document in documents]


def row_of(documents: Sequence[Document], *, row_length: int, pad_token_id: int) -> Row:
    """Make one row of the given documents, in their order."""
    input_ids = np.full(row_length, pad_token_id, dtype=np.int32)
    labels = np.full(row_length, IGNORE, dtype=np.int32)
    position_ids = np.zeros(row_length, dtype=np.int32)
    document_ids = np.full(row_length, PADDING, dtype=np.int32)
    start = 0
    for index, document in enumerate(documents):
        here = slice(start, start + len(document))
        input_ids[here] = document.token_ids
        labels[here] = np.where(document.carries_loss, document.token_ids, IGNORE)
        position_ids[here] = np.arange(len(document))
        document_ids[here] = index
        start += len(document)
    return Row(input_ids, labels, position_ids, document_ids)


def documents_of(row: Row) -> Iterator[Document]:
    """Yield the documents that a row was made of, in their order."""
    for index in range(int(row.document_ids.max(initial=PADDING)) + 1):
        here = row.document_ids == index
        yield Document(row.input_ids[here].tolist(), (row.labels[here] != IGNORE).tolist())


class RowDataset(Dataset[dict[str, Tensor]]):
    """A map-style dataset of rows. Items have `input_ids`, `labels`, `position_ids` and `document_ids`, all [L], and
    the scalar `row_ids`, which seeds the row's noise."""

    def __init__(self, rows: Sequence[Row]) -> None:
        self.rows = rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        columns = {name: torch.from_numpy(column).long() for name, column in vars(self.rows[index]).items()}
        return {**columns, "row_ids": torch.tensor(index)}


def as_batch(items: Sequence[dict[str, Tensor]], *, pad_token_id: int) -> dict[str, Tensor]:
    """Stack `RowDataset` items into a batch [B, L], padding shorter ones on the right with `pad_token_id`."""
    fill = {"input_ids": pad_token_id, "labels": IGNORE, "position_ids": 0, "document_ids": PADDING}
    batch = {
        name: pad_sequence([item[name] for item in items], batch_first=True, padding_value=value)
        for name, value in fill.items()
    }
    return {**batch, "row_ids": torch.stack([item["row_ids"] for item in items])}
