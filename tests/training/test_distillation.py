"""Distillation: the third term against a loop over masked tokens, and who teaches."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from families import tiny_model
from setblock.data.packing import PADDING
from setblock.masks import CLEAN
from setblock.model.sbd_model import SBDModel
from setblock.training.adapters import AdapterSection, add_adapter
from setblock.training.distillation import Distillation, divergences
from setblock.training.forward import training_logits, training_loss
from setblock.training.frozen import FrozenModel
from setblock.training.head import split_head
from setblock.training.inputs import TrainingInputs
from setblock.training.loss import SBDLoss
from setblock.training.noising import Noising
from training import doubling
from training.doubling import VOCABULARY, packed_rows

WEIGHT = 0.7


def tiny(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    return tiny_model("llama", vocab_size=VOCABULARY, dtype=torch.float64, seed=seed, **overrides)


@pytest.fixture
def rows() -> dict[str, Tensor]:
    return packed_rows()


def doubled(rows: dict[str, Tensor], *, logit_shift: bool = False) -> TrainingInputs:
    noising = Noising("block", noisy_copies=2, complementary_masks=True, complete_last_block=True)
    return doubling.doubled(rows, noising=noising, logit_shift=logit_shift)


def loss_of(model: PreTrainedModel, inputs: TrainingInputs, *, teacher: Any = None, logits_at_once: int) -> SBDLoss:
    return training_loss(
        model,
        inputs,
        head=split_head(model),
        ntp_weight=0.5,
        matp_weight=2.0,
        logits_at_once=logits_at_once,
        distillation=Distillation(WEIGHT, teacher),
    )


def by_hand(
    model: PreTrainedModel,
    teacher: PreTrainedModel,
    rows: dict[str, Tensor],
    inputs: TrainingInputs,
    *,
    logit_shift: bool,
) -> tuple[Tensor, int]:
    """The sum of KL(teacher ‖ model), token by token; the teacher reads each document alone."""
    width = inputs.input_ids.shape[1]
    ours = training_logits(model, inputs, inputs.matp.index).log_softmax(dim=-1)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for index, (at, token) in enumerate(zip(inputs.matp.index.tolist(), inputs.matp.token_ids.tolist(), strict=True)):
        b, i = divmod(at, width)
        document, block = int(inputs.document_ids[b, i]), inputs.block_ids[b, i]
        assert document != PADDING
        assert block != CLEAN
        text = rows["input_ids"][b, rows["document_ids"][b] == document]
        position = int(inputs.position_ids[b, i]) + int(logit_shift)  # of the token that this output predicts
        if not 0 < position < len(text):
            continue
        assert int(text[position]) == token
        with torch.no_grad():
            theirs = teacher(input_ids=text[None, :position]).logits[0, -1].log_softmax(dim=-1)
        total = total + (theirs.exp() * (theirs - ours[index])).sum()
        count += 1
    return total, count


@pytest.mark.parametrize("logits_at_once", [1 << 30, 7 * VOCABULARY], ids=["at once", "in chunks"])
@pytest.mark.parametrize("who", ["clean_half", "base"])
@pytest.mark.parametrize("shifted", [False, True])
def test_the_third_term(who: str, shifted: bool, logits_at_once: int, rows: dict[str, Tensor]) -> None:
    model, base = tiny(), tiny(seed=5)
    teacher = FrozenModel(base) if who == "base" else None
    inputs = doubled(rows, logit_shift=shifted)
    loss = loss_of(model, inputs, teacher=teacher, logits_at_once=logits_at_once)
    expected, count = by_hand(model, base if who == "base" else model, rows, inputs, logit_shift=shifted)
    assert loss.distillation_count == count > 20
    torch.testing.assert_close(loss.distillation_sum, expected.detach(), rtol=1e-5, atol=1e-5)
    total = 0.5 * loss.ntp_sum + 2.0 * loss.matp_sum
    torch.testing.assert_close((loss.total - total).detach(), (WEIGHT * expected).detach(), rtol=1e-4, atol=1e-4)

    # The gradient is that of the term by hand, in which the teacher is fixed, beside that of eq. 14.
    without = training_loss(model, inputs, head=None, ntp_weight=0.5, matp_weight=2.0)
    ours = torch.autograd.grad(loss.total, list(model.parameters()))
    theirs = torch.autograd.grad(without.total + WEIGHT * expected, list(model.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))


def test_a_frozen_teacher_does_not_learn(rows: dict[str, Tensor]) -> None:
    model, inputs = tiny(), doubled(rows)
    teacher = FrozenModel(model)
    causal = inputs.causal[inputs.causal >= 0]
    before = teacher(inputs, causal)(slice(None))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    assert torch.equal(teacher(inputs, causal)(slice(None)), before)
    assert not model.get_output_embeddings()._forward_pre_hooks


def test_under_an_adapter_the_base_model_teaches(rows: dict[str, Tensor], tokenizer: Any) -> None:
    model, inputs = tiny(), doubled(rows)
    causal = inputs.causal[inputs.causal >= 0]
    expected = training_logits(model, inputs, causal).detach()
    wrapped = add_adapter(SBDModel(model, tokenizer), AdapterSection(r=2))
    for name, parameter in wrapped.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter.data)
    assert not torch.allclose(training_logits(model, inputs, causal), expected)
    found = FrozenModel(wrapped)(inputs, causal)(slice(None))
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)
    assert all(parameter.requires_grad == ("lora" in name) for name, parameter in wrapped.named_parameters())


def test_divergence_is_none_from_oneself_and_positive_from_others() -> None:
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(divergences(logits, logits), torch.zeros(5), atol=1e-6)
    assert (divergences(logits, logits.roll(1, 0)) > 0).all()
