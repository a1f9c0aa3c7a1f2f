"""The doubled input's clean half computes what a plain causal pass would, in every family."""

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from families import FAMILIES, tiny_model
from setblock.data.packing import PADDING, Document, RowDataset, pack, unpacked
from setblock.masks import CLEAN
from setblock.training.inputs.doubled import TrainingInputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import training_logits
from training import doubling
from training.doubling import END, MASK, batch_of


@pytest.fixture(scope="module", params=FAMILIES)
def model(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> PreTrainedModel:
    return tiny_model(request.param, vocab_size=len(trained_tokenizer))


def doubled(documents: list[Document], *, packed: bool, mask: int = MASK, seed: int = 0) -> TrainingInputs:
    rows = pack(documents, row_length=60, pad_token_id=END) if packed else unpacked(documents)
    noising = Noising(noisy_copies=2)
    return doubling.doubled(
        batch_of(RowDataset(rows)), block_size=7, noising=noising, noise_ids=range(mask, mask + 1), seed=(seed,)
    )


@torch.inference_mode()
def all_logits(model: PreTrainedModel, inputs: TrainingInputs) -> Tensor:
    """[B, T, V]"""
    batch, length = inputs.input_ids.shape
    logits = training_logits(model, inputs, torch.arange(batch * length))
    return logits.view(batch, length, -1)


@pytest.mark.in_turn
@pytest.mark.parametrize("packed", [False, True])
def test_clean_half_is_a_plain_causal_pass(model: PreTrainedModel, packed: bool, documents: list[Document]) -> None:
    """Each document on its own, under Transformers' own masks."""
    inputs = doubled(documents, packed=packed)
    logits, found = all_logits(model, inputs), 0
    for b in range(len(logits)):
        is_clean = (inputs.block_ids[b] == CLEAN) & (inputs.document_ids[b] != PADDING)
        for document in inputs.document_ids[b, is_clean].unique():
            here = is_clean & (inputs.document_ids[b] == document)
            with torch.inference_mode():
                plain = model(input_ids=inputs.input_ids[b, here][None], use_cache=False).logits[0]
            torch.testing.assert_close(logits[b, here], plain, atol=1e-4, rtol=1e-4)
            found += 1
    assert found == len(documents)


def test_the_noise_changes_no_clean_logit(model: PreTrainedModel, documents: list[Document]) -> None:
    first, second = (doubled(documents, packed=True, seed=seed) for seed in range(2))
    is_clean = (first.block_ids == CLEAN) & (first.document_ids != PADDING)
    assert not torch.equal(first.input_ids, second.input_ids)
    torch.testing.assert_close(
        all_logits(model, first)[is_clean], all_logits(model, second)[is_clean], atol=1e-5, rtol=1e-5
    )


def test_a_later_block_never_changes_earlier_logits(model: PreTrainedModel, documents: list[Document]) -> None:
    """Other tokens from some place of a document on, in both halves: what lies in blocks before it stays the same."""
    inputs = doubled(documents[1:2], packed=False)
    before = all_logits(model, inputs)
    for changed_from in (7, 14, 28):
        later = inputs.position_ids >= changed_from
        changed = TrainingInputs(**(vars(inputs) | {"input_ids": inputs.input_ids.masked_fill(later, 42)}))
        assert not torch.equal(changed.input_ids, inputs.input_ids)
        torch.testing.assert_close(all_logits(model, changed)[~later], before[~later], atol=1e-5, rtol=1e-5)


def test_noised_equals_clean_gives_the_same_logits(model: PreTrainedModel, documents: list[Document]) -> None:
    """Blocks of one token that are not masked see just what the clean token sees."""
    rows = batch_of(RowDataset(pack(documents, row_length=60, pad_token_id=END)))
    inputs = doubling.doubled(rows, block_size=1, seed=(0,))
    clean = rows["input_ids"].shape[1]
    of_text = rows["document_ids"] != PADDING
    unmasked = inputs.input_ids.clone()
    for b in range(len(unmasked)):
        noisy = (inputs.block_ids[b] != CLEAN) & (inputs.document_ids[b] != PADDING)
        unmasked[b, noisy] = rows["input_ids"][b][of_text[b]]
    logits = all_logits(model, TrainingInputs(**(vars(inputs) | {"input_ids": unmasked})))
    for b in range(len(unmasked)):
        noisy = (inputs.block_ids[b] != CLEAN) & (inputs.document_ids[b] != PADDING)
        torch.testing.assert_close(logits[b, noisy], logits[b, :clean][of_text[b]], atol=1e-4, rtol=1e-4)
