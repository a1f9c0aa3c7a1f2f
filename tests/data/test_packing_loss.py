"""Packing changes nothing that is learned: the losses of packed rows are those of a row for each document."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from families import tiny_model
from setblock.data.packing import PADDING, Document, RowDataset, pack, unpacked
from setblock.masks import CLEAN, to_dense, train_mask
from setblock.training.inputs import doubled as inputs_module
from setblock.training.inputs.doubled import TrainingInputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.loss import SBDLoss
from training import doubling
from training.doubling import END, batch_of

VOCABULARY = 40


@pytest.fixture(scope="module")
def model() -> PreTrainedModel:
    # Large weights: a token that may not be seen, and is, changes the loss by much.
    return tiny_model("llama", vocab_size=VOCABULARY, num_hidden_layers=2, initializer_range=0.3).eval()


@st.composite
def corpora(draw: st.DrawFn) -> list[Document]:
    """Documents of random tokens, some of which carry loss."""
    found = []
    for length in draw(st.lists(st.integers(2, 14), min_size=2, max_size=7)):
        token_ids = draw(st.lists(st.integers(2, VOCABULARY - 1), min_size=length, max_size=length))
        found.append(Document(token_ids, draw(st.lists(st.booleans(), min_size=length, max_size=length))))
    return found


def packed_order(documents: list[Document], row_length: int) -> list[Document]:
    """The documents in the order in which they lie in the packed rows."""
    numbered = [Document([i] * len(d), [True] * len(d)) for i, d in enumerate(documents)]
    rows = pack(numbered, row_length=row_length, pad_token_id=END)
    starts = [row.input_ids[(row.position_ids == 0) & (row.document_ids != PADDING)] for row in rows]
    return [documents[i] for i in np.concatenate(starts)]


def doubled(rows: RowDataset, **options: Any) -> TrainingInputs:
    """All rows as one batch. Their noise is one sequence of draws, so that it falls on the documents in their order."""
    rng = np.random.default_rng(0)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(inputs_module.np.random, "default_rng", lambda seed: rng)
        noising = Noising(**options.pop("noising", {}))
        return doubling.doubled(batch_of(rows), noising=noising, context_length=64, seed=(0,), **options)


@torch.no_grad()
def losses(model: PreTrainedModel, inputs: TrainingInputs) -> SBDLoss:
    return doubling.loss_of(model, inputs)


@pytest.mark.parametrize("logit_shift", [False, True])
@pytest.mark.parametrize(
    "noising", [{}, {"mask_rate_per": "block", "noise_on": "targets", "complete_last_block": True}]
)
@given(documents=corpora(), block_size=st.integers(1, 6), room=st.integers(0, 30))
@settings(max_examples=15)
def test_packed_rows_have_the_loss_of_unpacked_ones(
    model: PreTrainedModel,
    noising: dict[str, Any],
    logit_shift: bool,
    documents: list[Document],
    block_size: int,
    room: int,
) -> None:
    row_length = max(map(len, documents)) + room
    ordered = packed_order(documents, row_length)
    packed = RowDataset(pack(documents, row_length=row_length, pad_token_id=END))
    options = {"block_size": block_size, "noising": noising, "logit_shift": logit_shift}
    together = losses(model, doubled(packed, **options))
    apart = losses(model, doubled(RowDataset(unpacked(ordered)), **options))
    assert (together.ntp_count, together.matp_count) == (apart.ntp_count, apart.matp_count)
    torch.testing.assert_close(together.ntp_sum, apart.ntp_sum, rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(together.matp_sum, apart.matp_sum, rtol=1e-4, atol=1e-4)


def noisy_runs(inputs: TrainingInputs, b: int) -> Iterator[tuple[int, list[int], list[int]]]:
    """The noisy blocks of a row, in order: the document, the positions, and the limits of each."""
    is_noisy = (inputs.block_ids[b] != CLEAN) & (inputs.document_ids[b] != PADDING)
    for block in inputs.block_ids[b, is_noisy].unique().tolist():
        here = is_noisy & (inputs.block_ids[b] == block)
        (document,) = inputs.document_ids[b, here].unique().tolist()
        yield document, inputs.position_ids[b, here].tolist(), inputs.limits[b, here].tolist()


@given(corpora(), st.integers(1, 6), st.integers(0, 30))
def test_blocks_tile_each_document_from_its_first_token(documents: list[Document], block_size: int, room: int) -> None:
    row_length = max(map(len, documents)) + room
    rows = RowDataset(pack(documents, row_length=row_length, pad_token_id=END))
    inputs = doubled(rows, block_size=block_size, logit_shift=False)
    for b, row in enumerate(rows.rows):
        for document in range(row.document_ids.max() + 1):
            length = int((row.document_ids == document).sum())
            blocks = [(places, limits) for d, places, limits in noisy_runs(inputs, b) if d == document]
            assert [place for places, _ in blocks for place in places] == list(range(length))
            for places, limits in blocks:
                assert places[0] % block_size == 0
                assert len(places) == min(block_size, length - places[0])
                assert set(limits) == {places[0]}  # it sees the clean tokens before its own first one


@given(corpora(), st.integers(1, 6), st.integers(0, 30))
def test_nothing_is_seen_across_documents_in_either_half(documents: list[Document], block_size: int, room: int) -> None:
    """By the tokens' own documents, found from where they came from and not from the columns that the mask reads."""
    row_length = max(map(len, documents)) + room
    rows = RowDataset(pack(documents, row_length=row_length, pad_token_id=END))
    inputs = doubled(rows, block_size=block_size, logit_shift=False)
    length = inputs.input_ids.shape[1]
    names = ("position_ids", "document_ids", "block_ids", "limits")
    mask = train_mask(**{name: getattr(inputs, name) for name in names})
    allowed = to_dense(mask, batch=len(rows), queries=length, keys=length)[:, 0]  # [B, T, T]
    for b, row in enumerate(rows.rows):
        # 1. Which document a token is of: a new one begins where positions start again
        used = row.document_ids != PADDING
        clean = np.where(used, np.cumsum((row.position_ids == 0) & used), -1)
        places = inputs.position_ids[b, row_length:].numpy()
        real = inputs.document_ids[b, row_length:].numpy() != PADDING
        noisy = np.where(real, np.cumsum((places == 0) & real), -1)
        owner = torch.from_numpy(np.concatenate([clean, noisy]))
        # 2. Who sees whom
        seen = allowed[b]
        assert not seen[owner[:, None] != owner[None, :]].any()
        assert not seen[:row_length, row_length:].any()  # clean tokens see no noisy one
        assert seen.any(dim=1).all()
