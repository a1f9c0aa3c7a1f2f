"""A stream: the same rows every time, from however far; the same as packing would give; and nothing left out in silence."""

from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from setblock.data.corpus.stream import RowStream
from setblock.data.packing import Document, RowCollator, fill, pack, row_of
from setblock.data.rows import rows_of
from setblock.data.section import DataSection
from setblock.errors import SetBlockError, SetBlockWarning


@pytest.fixture
def stream(tokenizer) -> Any:
    def made(**section: Any) -> RowStream:
        section = {"row_length": 20, **section}
        rows = rows_of(DataSection(streaming=True, **section), tokenizer, context_length=512, mask_token_id=1).train
        assert isinstance(rows, RowStream)
        return rows

    return made


@pytest.fixture
def file(write):
    return str(write("a.jsonl", [{"text": f"{i:02}" + "x" * (i % 7)} for i in range(30)]))


def items(rows: RowStream, count: int) -> list[dict[str, torch.Tensor]]:
    return list(islice(rows, count))


def equal(first: list[dict[str, torch.Tensor]], second: list[dict[str, torch.Tensor]]) -> bool:
    return all(torch.equal(a[name], b[name]) for a, b in zip(first, second, strict=True) for name in a)


def test_the_same_rows_every_time(stream, file, write):
    """More than two passes over the file, with two sources and a shuffle: what a resumed run relies on."""
    other = {"source": str(write("b.jsonl", [{"text": "b"}] * 3)), "weight": 0.5}
    section = {"mixture": [{"source": file}, other], "shuffle_buffer": 8, "seed": 3}
    first = items(stream(**section), 40)
    assert equal(first, items(stream(**section), 40))
    assert [int(item["row_ids"]) for item in first] == list(range(40))
    again = stream(**section)
    items(again, 7)
    assert equal(first, items(again, 40))  # begun anew, it is not where it was left
    assert not equal(first, items(stream(**section | {"seed": 4}), 40))


def test_every_document_comes_once_a_pass(stream, file, tokenizer):
    seen: list[str] = []
    for item in stream(source=file, shuffle_buffer=1):
        for document in range(int(item["document_ids"].max()) + 1):
            seen.append(tokenizer.decode(item["input_ids"][item["document_ids"] == document])[:2])
        if len(seen) >= 60:
            break
    # Packing moves a document by some places; between two of its appearances lies about one pass.
    assert set(seen) == {f"{i:02}" for i in range(30)}
    assert max(seen.count(text) for text in set(seen)) - min(seen.count(text) for text in set(seen)) <= 2


def test_a_stream_is_read_as_it_goes(stream, write):
    """The malformed line in the end is met in the end."""
    path = write("a.jsonl", [{"text": "x" * 9}] * 2000)
    path.write_bytes(path.read_bytes() + b"{\n")
    rows = iter(stream(source=str(path), shuffle_buffer=10))
    assert len(list(islice(rows, 500))) == 500
    with pytest.raises(SetBlockError, match=r"a.jsonl, line 2001: not JSON"):
        list(islice(rows, 2000))


def test_what_is_left_out_is_told_at_ever_longer_intervals(stream, write):
    path = str(write("a.jsonl", [{"text": "x" * (50 if i % 2 else 5)} for i in range(20)]))
    with pytest.warns(
        SetBlockWarning, match="data, so far: .* documents are longer than 20 tokens and were dropped"
    ) as told:
        items(rows := stream(source=path, too_long="drop", shuffle_buffer=1), 40)
    assert rows.census.too_long > 60
    assert len(told) == rows.census.too_long.bit_length()
    with pytest.raises(SetBlockError, match=r"a.jsonl, line 2: the document has 51 tokens"):
        items(stream(source=path, shuffle_buffer=1), 40)


def test_a_source_of_which_nothing_is_kept_does_not_go_on_for_ever(stream, write):
    path = str(write("a.jsonl", [{"text": "x" * 50}] * 3))
    rows = stream(source=path, too_long="drop", shuffle_buffer=1)
    with (
        pytest.warns(SetBlockWarning),
        pytest.raises(SetBlockError, match="none of the last 10000 documents could be kept"),
    ):
        next(iter(rows))


def test_the_mask_token_is_refused(stream, write):
    path = str(write("a.jsonl", [{"text": "<|reserved_special_token_0|>"}]))
    with pytest.raises(SetBlockError, match=r"a.jsonl, line 1: the document spells the mask token"):
        next(iter(stream(source=path, special_tokens="keep")))


def test_one_worker_reads_what_none_would_and_more_are_refused(stream, file):
    rows, collator = stream(source=file), RowCollator(pad_token_id=0)
    batches = [
        list(islice(DataLoader(rows, batch_size=2, collate_fn=collator, num_workers=workers), 4)) for workers in (0, 1)
    ]
    assert equal(*batches)
    with pytest.raises(SetBlockError, match="dataloader_num_workers must be 0 or 1, not 2"):
        next(iter(DataLoader(rows, batch_size=2, collate_fn=collator, num_workers=2)))


lengths = st.lists(st.integers(1, 9), max_size=200)


@given(lengths, st.integers(9, 25))
def test_lazy_filling_is_packing(sizes: list[int], row_length: int) -> None:
    documents = [Document([i] * n, [True] * n) for i, n in enumerate(sizes)]
    lazily = [
        row_of([documents[i] for i in row], row_length=row_length, pad_token_id=0)
        for row in fill(range(len(sizes)), size=sizes.__getitem__, row_length=row_length)
    ]
    eagerly = pack(documents, row_length=row_length, pad_token_id=0)
    assert len(lazily) == len(eagerly)
    for ours, theirs in zip(lazily, eagerly, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(vars(ours).values(), vars(theirs).values(), strict=True))


@pytest.mark.parametrize("size", [4, 9])
def test_filling_holds_few_items(size: int) -> None:
    """Of an endless stream, no more than the open rows: here one item each."""
    taken = 0

    def items() -> Any:
        nonlocal taken
        while True:
            taken += 1
            yield size

    for given_out, _ in enumerate(islice(fill(items(), size=int, row_length=size + 3), 200)):
        assert taken - given_out <= 33
