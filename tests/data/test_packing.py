"""Packing: documents come out as they went in."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from setblock.data.packing import IGNORE, PADDING, Document, Row, RowDataset, as_batch, pack, unpacked

PAD = 7


@st.composite
def corpora(draw: st.DrawFn) -> tuple[list[Document], int]:
    """Documents whose tokens are all different, and a row length that holds the longest."""
    lengths = draw(st.lists(st.integers(1, 9), min_size=1, max_size=60))
    ids = iter(range(1000, 2000))
    documents = [Document([next(ids) for _ in range(n)], [draw(st.booleans()) for _ in range(n)]) for n in lengths]
    return documents, draw(st.integers(max(lengths), 25))


def documents_of(row: Row) -> list[Document]:
    """A row's documents, read back."""
    found = []
    for index in range(int(row.document_ids.max()) + 1):
        here = row.document_ids == index
        found.append(Document(row.input_ids[here].tolist(), (row.labels[here] != IGNORE).tolist()))
    return found


@given(corpora())
def test_every_document_appears_once_whole_and_in_order(corpus: tuple[list[Document], int]) -> None:
    documents, row_length = corpus
    rows = pack(documents, row_length=row_length, pad_token_id=PAD)
    found = [documents_of(row) for row in rows]
    assert sorted((d for row in found for d in row), key=lambda d: d.token_ids) == documents
    for row in found:
        order = [documents.index(d) for d in row]
        assert order == sorted(order)


@given(corpora())
def test_columns_of_a_row(corpus: tuple[list[Document], int]) -> None:
    documents, row_length = corpus
    for row in pack(documents, row_length=row_length, pad_token_id=PAD):
        assert {len(column) for column in vars(row).values()} == {row_length}
        used = row.document_ids != PADDING
        assert (np.diff(used.astype(int)) <= 0).all()  # padding is on the right
        assert (row.input_ids[~used] == PAD).all()
        assert (row.labels[~used] == IGNORE).all()
        starts = {}
        for i in np.flatnonzero(used):
            start = starts.setdefault(row.document_ids[i], i)
            assert row.position_ids[i] == i - start
            assert row.labels[i] in (IGNORE, row.input_ids[i])


@given(corpora())
def test_packing_is_deterministic(corpus: tuple[list[Document], int]) -> None:
    documents, row_length = corpus
    first, second = (pack(iter(documents), row_length=row_length, pad_token_id=PAD) for _ in range(2))
    assert len(first) == len(second)
    for a, b in zip(first, second, strict=True):
        for name in vars(a):
            assert np.array_equal(getattr(a, name), getattr(b, name))


def test_packing_wastes_little() -> None:
    documents = [Document([1] * n, [True] * n) for n in (6, 5, 4, 3, 2, 1, 6, 4, 5) * 10]
    rows = pack(documents, row_length=10, pad_token_id=0)
    assert len(rows) <= 1.1 * sum(map(len, documents)) / 10


def test_a_document_longer_than_a_row_is_an_error() -> None:
    documents = [Document([1], [True]), Document([1] * 5, [True] * 5)]
    with pytest.raises(ValueError, match="document 1 has 5 tokens, more than row_length 4"):
        pack(documents, row_length=4, pad_token_id=0)


def test_a_batch_pads_unpacked_rows_on_the_right() -> None:
    documents = [Document([5, 6, 7], [False, True, True]), Document([8], [True])]
    dataset = RowDataset(unpacked(documents))
    batch = as_batch([dataset[1], dataset[0]], pad_token_id=PAD)
    assert batch["input_ids"].tolist() == [[8, PAD, PAD], [5, 6, 7]]
    assert batch["labels"].tolist() == [[8, IGNORE, IGNORE], [IGNORE, 6, 7]]
    assert batch["document_ids"].tolist() == [[0, PADDING, PADDING], [0, 0, 0]]
    assert batch["position_ids"].tolist() == [[0, 0, 0], [0, 1, 2]]
    assert batch["row_ids"].tolist() == [1, 0]
    assert all(column.dtype == torch.long for column in batch.values())
