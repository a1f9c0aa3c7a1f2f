"""The doubled input: its layout, and that noise belongs to a row and not to its batch."""

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from families import tiny_model
from setblock.data.packing import IGNORE, PADDING, Document, RowDataset, as_batch, pack, unpacked
from setblock.masks import CLEAN
from setblock.training.config import SBDConfig
from setblock.training.inputs.collator import SBDCollator
from setblock.training.inputs.doubled import TrainingInputs, doubled_inputs, ntp_inputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import training_logits

MASK, END = 1, 0


@pytest.fixture
def rows(documents: list[Document]) -> dict[str, Tensor]:
    """A batch of packed rows."""
    dataset = RowDataset(pack(documents, row_length=56, pad_token_id=END))
    assert len(dataset) > 1
    return as_batch([dataset[i] for i in range(len(dataset))], pad_token_id=END)


def doubled(rows: dict[str, Tensor], **options: object) -> TrainingInputs:
    defaults = {
        "block_size": 4,
        "noising": Noising(),
        "logit_shift": False,
        "noise_ids": range(MASK, MASK + 1),
        "end_of_text_id": END,
        "context_length": 128,
        "seed": (0, 7),
    }
    return doubled_inputs(rows, **(defaults | options))  # type: ignore[arg-type]


@pytest.mark.parametrize("logit_shift", [False, True])
@pytest.mark.parametrize("noising", [Noising(), Noising(noise_on="targets", noisy_copies=2, complete_last_block=True)])
def test_targets_are_the_masked_tokens_that_carry_a_loss(
    rows: dict[str, Tensor], noising: Noising, logit_shift: bool
) -> None:
    inputs = doubled(rows, noising=noising, logit_shift=logit_shift)
    batch, length = inputs.input_ids.shape
    clean = rows["input_ids"].shape[1]
    assert torch.equal(inputs.input_ids[:, :clean], rows["input_ids"])

    # By hand: every masked place whose token is to be learned, in order
    expected = []
    for b in range(batch):
        text = {
            (int(rows["document_ids"][b, i]), int(rows["position_ids"][b, i])): int(rows["labels"][b, i])
            for i in range(clean)
        }
        for i in range(clean, length):
            document, position = int(inputs.document_ids[b, i]), int(inputs.position_ids[b, i])
            label = text.get((document, position), END)  # past the text: the end-of-text that fills the block
            first = position == int(inputs.limits[b, i])
            if (
                document != PADDING
                and inputs.input_ids[b, i] == MASK
                and label != IGNORE
                and not (logit_shift and first)
            ):
                expected.append((b * length + i - logit_shift, label))
    assert list(zip(inputs.matp.index.tolist(), inputs.matp.token_ids.tolist(), strict=True)) == expected

    expected = []
    for b in range(batch):
        for i in range(clean - 1):
            same = rows["document_ids"][b, i] == rows["document_ids"][b, i + 1]
            if same and rows["labels"][b, i + 1] != IGNORE:
                expected.append((b * length + i, int(rows["labels"][b, i + 1])))
    assert list(zip(inputs.ntp.index.tolist(), inputs.ntp.token_ids.tolist(), strict=True)) == expected


@pytest.mark.parametrize("noisy_copies", [1, 3])
def test_block_ids_are_unique_in_a_row(rows: dict[str, Tensor], noisy_copies: int) -> None:
    """One id, one document, one start, at most k tokens: also across copies and beside padding."""
    inputs = doubled(rows, noising=Noising(noisy_copies=noisy_copies))
    clean = rows["input_ids"].shape[1]
    for b in range(len(inputs.input_ids)):
        assert (inputs.block_ids[b, :clean] == CLEAN).all()
        for block in inputs.block_ids[b, clean:].unique():
            members = inputs.block_ids[b] == block
            assert len(inputs.document_ids[b, members].unique()) == 1
            assert len(inputs.limits[b, members].unique()) == 1
            if inputs.document_ids[b, members][0] != PADDING:
                assert 1 <= members.sum() <= 4
                positions = inputs.position_ids[b, members]
                assert torch.equal(positions, positions[0] + torch.arange(len(positions)))


def test_a_row_has_the_same_noise_in_any_batch(documents: list[Document]) -> None:
    dataset = RowDataset(unpacked(documents))
    together = doubled(as_batch([dataset[i] for i in (4, 1, 0, 5)], pad_token_id=END))
    for b, i in enumerate((4, 1, 0, 5)):
        alone = doubled(as_batch([dataset[i]], pad_token_id=END))
        ours, theirs = ((x.document_ids != PADDING) & (x.block_ids != CLEAN) for x in (together, alone))
        for name in ("input_ids", "position_ids", "limits", "block_ids"):
            assert torch.equal(getattr(together, name)[b][ours[b]], getattr(alone, name)[0][theirs[0]])


def test_noise_depends_on_the_step_and_the_row(rows: dict[str, Tensor]) -> None:
    first = doubled(rows).input_ids
    assert torch.equal(first, doubled(rows).input_ids)
    assert not torch.equal(first, doubled(rows, seed=(0, 8)).input_ids)
    assert not torch.equal(first, doubled(rows, seed=(1, 7)).input_ids)
    assert not torch.equal(first, doubled({**rows, "row_ids": rows["row_ids"] + 1}).input_ids)


def test_completed_blocks_stay_inside_the_context(documents: list[Document]) -> None:
    rows = as_batch([RowDataset(unpacked(documents))[1]], pad_token_id=END)  # 33 tokens
    for context, last in ((128, 47), (40, 39), (33, 32)):
        inputs = doubled(rows, block_size=16, noising=Noising(complete_last_block=True), context_length=context)
        assert int(inputs.position_ids.max()) == last


def test_ntp_inputs_are_the_rows_alone(rows: dict[str, Tensor]) -> None:
    inputs, reference = ntp_inputs(rows), doubled(rows)
    clean = rows["input_ids"].shape[1]
    for name in ("input_ids", "position_ids", "document_ids", "block_ids", "limits"):
        assert torch.equal(getattr(inputs, name), getattr(reference, name)[:, :clean])
    assert torch.equal(inputs.ntp.token_ids, reference.ntp.token_ids)
    assert len(inputs.matp.index) == len(inputs.matp.token_ids) == 0


@pytest.mark.parametrize("family", ["llama", "gemma3_text"])
@pytest.mark.parametrize("logit_shift", [False, True])
def test_one_flat_row_gives_the_logits_of_all_rows(
    rows: dict[str, Tensor], trained_tokenizer: PreTrainedTokenizerBase, family: str, logit_shift: bool
) -> None:
    """And has no padding; its mask says the same for each pair of tokens of one row, and no to all others."""
    noising = Noising(noisy_copies=2, noise_on="targets")
    inputs, flat = (doubled(rows, noising=noising, logit_shift=logit_shift, is_flat=flat) for flat in (False, True))
    assert (inputs.document_ids == PADDING).any()
    assert not (flat.document_ids == PADDING).any()
    assert (flat.clean_tokens, flat.noisy_tokens) == (inputs.clean_tokens, inputs.noisy_tokens)
    assert flat.input_ids.shape == (1, inputs.clean_tokens + inputs.noisy_tokens)
    model = tiny_model(family, vocab_size=len(trained_tokenizer), dtype=torch.float64)
    for name in ("ntp", "matp"):
        ours, theirs = getattr(flat, name), getattr(inputs, name)
        assert torch.equal(ours.token_ids, theirs.token_ids)
        expected = training_logits(model, inputs, theirs.index)
        torch.testing.assert_close(training_logits(model, flat, ours.index), expected)
        model.set_attn_implementation("eager")  # by one mask over the whole row; its softmax is in float32
        torch.testing.assert_close(training_logits(model, flat, ours.index), expected, rtol=1e-3, atol=1e-4)
        model.set_attn_implementation("sdpa")
    torch.testing.assert_close(
        training_logits(model, flat, flat.teacher_index), training_logits(model, inputs, inputs.teacher_index)
    )


@pytest.mark.parametrize("is_flat", [False, True])
@pytest.mark.parametrize("multiple", [16, 100])
@pytest.mark.parametrize("is_ntp", [False, True])
def test_padding_to_a_multiple_changes_nothing_else(
    rows: dict[str, Tensor], trained_tokenizer: PreTrainedTokenizerBase, is_flat: bool, multiple: int, is_ntp: bool
) -> None:
    make = ntp_inputs if is_ntp else doubled
    inputs, padded = make(rows, is_flat=is_flat), make(rows, is_flat=is_flat, multiple=multiple)
    length = inputs.input_ids.shape[1]
    assert length % multiple, "there is something to pad"
    assert padded.input_ids.shape[1] == -(-length // multiple) * multiple
    assert (padded.clean_tokens, padded.noisy_tokens) == (inputs.clean_tokens, inputs.noisy_tokens)
    model = tiny_model("gemma3_text", vocab_size=len(trained_tokenizer), dtype=torch.float64)
    for name in ("ntp", "matp"):
        ours, theirs = getattr(padded, name), getattr(inputs, name)
        assert torch.equal(ours.token_ids, theirs.token_ids)
        expected = training_logits(model, inputs, theirs.index)
        torch.testing.assert_close(training_logits(model, padded, ours.index), expected)
    expected = training_logits(model, inputs, inputs.teacher_index)
    torch.testing.assert_close(training_logits(model, padded, padded.teacher_index), expected)
    if not is_flat:  # also under one mask over whole rows, as FlexAttention has; its softmax is in float32
        model.set_attn_implementation("eager")
        torch.testing.assert_close(training_logits(model, padded, padded.teacher_index), expected, rtol=1e-3, atol=1e-4)


def test_the_collator_pads(documents: list[Document], tmp_path: Path) -> None:
    args = SBDConfig(output_dir=str(tmp_path), use_cpu=True, report_to="none", pad_to_multiple_of=64)
    collator = SBDCollator(args, noise_ids=range(MASK, MASK + 1), end_of_text_id=END, context_length=128)
    dataset = RowDataset(unpacked(documents))
    for objective in ("sbd", "ntp"):
        args.objective = objective  # type: ignore[assignment]
        for size in (1, 2, 3):
            inputs = collator.inputs(
                as_batch([dataset[n] for n in range(size)], pad_token_id=END), step=0, block_size=4
            )
            assert inputs.input_ids.shape[1] % 64 == 0
    with pytest.raises(ValueError, match="pad_to_multiple_of must be at least 1, not 0"):
        SBDConfig(output_dir=str(tmp_path), use_cpu=True, pad_to_multiple_of=0)
