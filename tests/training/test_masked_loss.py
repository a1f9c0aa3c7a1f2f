"""The losses of masked tokens that have a teacher, and weights by place, against loops over masked tokens."""

from typing import Any, get_args

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from families import tiny_model, tiny_sbd
from setblock.data.packing import PADDING
from setblock.errors import SetBlockError
from setblock.masks import CLEAN
from setblock.training.adapter import AdapterSection
from setblock.training.config import SBDConfig
from setblock.training.inputs.doubled import TrainingInputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import split_head, training_logits, training_loss
from setblock.training.loss.loss import MaskedLoss, SBDLoss, chunked_loss, total_variations
from setblock.training.trainer.trainer import prepare
from training import doubling
from training.doubling import VOCABULARY, packed_rows


def tiny(seed: int = 0, **overrides: Any) -> PreTrainedModel:
    how = {"initializer_range": 0.2} | overrides  # else its distributions are hardly apart
    return tiny_model("llama", vocab_size=VOCABULARY, dtype=torch.float64, seed=seed, **how)


@pytest.fixture
def rows() -> dict[str, Tensor]:
    return packed_rows()


def doubled(rows: dict[str, Tensor], *, logit_shift: bool = False) -> TrainingInputs:
    noising = Noising(
        mask_rate_per="block", noisy_copies=2, complementary_masks=True, complete_last_block=True, random_offsets=0.5
    )
    return doubling.doubled(rows, noising=noising, logit_shift=logit_shift)


def loss_of(model: PreTrainedModel, inputs: TrainingInputs, **how: Any) -> SBDLoss:
    return training_loss(model, inputs, head=split_head(model), ntp_weight=0.5, matp_weight=2.0, **how)


def by_hand(
    model: PreTrainedModel, rows: dict[str, Tensor], inputs: TrainingInputs, kind: MaskedLoss, shift: bool
) -> tuple[Tensor, int]:
    """The masked term token by token, and how many tokens it has; the teacher reads each document alone."""
    width = inputs.input_ids.shape[1]
    ours = training_logits(model, inputs, inputs.matp.index).softmax(dim=-1)
    total, count = torch.zeros((), dtype=torch.float64), 0
    for q, at, token in zip(ours, inputs.matp.index.tolist(), inputs.matp.token_ids.tolist(), strict=True):
        b, i = divmod(at, width)
        document, block = int(inputs.document_ids[b, i]), inputs.block_ids[b, i]
        assert document != PADDING
        assert block != CLEAN
        text = rows["input_ids"][b, rows["document_ids"][b] == document]
        if kind == "cross_entropy":
            loss = -q[token].log()
        else:
            position = int(inputs.position_ids[b, i]) + int(shift)  # of the token that this output predicts
            if not 0 < position < len(text):
                continue
            assert int(text[position]) == token
            with torch.no_grad():
                p = model(input_ids=text[None, :position]).logits[0, -1].softmax(dim=-1)
            loss = 1 - torch.minimum(q, p).sum()
        total, count = total + loss, count + 1
    return total, count


@pytest.mark.in_turn
@pytest.mark.parametrize("logits_at_once", [1 << 30, 7 * VOCABULARY], ids=["at once", "in chunks"])
@pytest.mark.parametrize("shifted", [False, True])
@pytest.mark.parametrize("kind", get_args(MaskedLoss))
def test_the_masked_term(kind: MaskedLoss, shifted: bool, logits_at_once: int, rows: dict[str, Tensor]) -> None:
    """Its value and its gradient, in which the teacher is fixed, beside the next-token term's."""
    model, inputs = tiny(), doubled(rows, logit_shift=shifted)
    loss = loss_of(model, inputs, masked_loss=kind, logits_at_once=logits_at_once)
    term, count = by_hand(model, rows, inputs, kind, shifted)
    assert loss.matp_count == count > 20
    torch.testing.assert_close(loss.matp_sum.detach(), term.detach(), rtol=1e-6, atol=1e-6)
    expected = 0.5 * loss.ntp_sum.detach() + 2.0 * term.detach()
    torch.testing.assert_close(loss.total.detach(), expected, rtol=1e-6, atol=1e-6)

    ntp = training_loss(model, inputs, head=None, ntp_weight=0.5, matp_weight=0.0).total
    ours = torch.autograd.grad(loss.total, list(model.parameters()))
    theirs = torch.autograd.grad(ntp + 2.0 * term, list(model.parameters()))
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-6 * float(b.abs().max()))


@pytest.mark.parametrize("chunk", [1, 4, 100])
def test_total_variations_gradient_is_the_definitions(chunk: int) -> None:
    """Of the hidden states and of the head: by autograd of 1 - Σ min(p, q), and by the closed form."""
    generator = torch.Generator().manual_seed(0)
    hidden, head, teacher = (
        torch.randn(shape, generator=generator, dtype=torch.float64) for shape in ((9, 5), (13, 5), (9, 13))
    )
    weights = torch.rand(9, generator=generator, dtype=torch.float64)
    hidden.requires_grad_()
    head.requires_grad_()

    def losses_of(logits: Tensor, here: slice) -> Tensor:
        return total_variations(logits, teacher[here])

    total, losses = chunked_loss(
        hidden, weights, losses_of, head=lambda h: h @ head.t(), parameters=[head], chunk=chunk
    )
    found = torch.autograd.grad(total, [hidden, head])
    logits = hidden @ head.t()
    q, p = logits.softmax(-1), teacher.softmax(-1)
    naive = 1 - torch.minimum(p, q).sum(-1)
    torch.testing.assert_close(losses, naive.detach())
    torch.testing.assert_close(found, torch.autograd.grad((naive * weights).sum(), [hidden, head], retain_graph=True))
    signs = (q - p).sign() / 2
    closed = (q * (signs - (q * signs).sum(-1, keepdim=True)) * weights[:, None]).detach()
    torch.testing.assert_close(found, (closed @ head.detach(), closed.t() @ hidden.detach()))


def test_equal_distributions_have_no_loss_and_others_have() -> None:
    logits = torch.randn(5, 9, generator=torch.Generator().manual_seed(0)).requires_grad_()
    losses = total_variations(logits, logits)
    torch.testing.assert_close(losses, torch.zeros(5), rtol=0, atol=1e-6)
    (gradient,) = torch.autograd.grad(losses.sum(), logits)
    torch.testing.assert_close(gradient, torch.zeros(5, 9), rtol=0, atol=1e-6)
    others = total_variations(logits, logits.roll(1, 0))
    assert (others > 0).all()
    assert (others < 1).all()


def test_a_model_that_does_not_read_its_input_has_no_loss(rows: dict[str, Tensor]) -> None:
    model, inputs = tiny(tie_word_embeddings=False), doubled(rows)
    assert float(loss_of(model, inputs, masked_loss="total_variation").matp_sum.detach()) > 1
    with torch.no_grad():
        model.get_input_embeddings().weight[:] = model.get_input_embeddings().weight[:1].clone()
    loss = loss_of(model, inputs, masked_loss="total_variation")
    assert float(loss.matp_sum.detach()) == pytest.approx(0, abs=1e-9)
    assert loss.matp_count > 20


def test_without_a_frozen_clean_half_or_a_next_token_term_nothing_teaches(tokenizer: Any, tmp_path: Any) -> None:
    """Clean half and noisy half could agree on anything."""
    args = SBDConfig(output_dir=str(tmp_path), masked_loss="total_variation", ntp_weight=0.0, report_to="none")
    for adapter in (None, AdapterSection(only_noisy=False)):
        with pytest.raises(
            SetBlockError, match=r"training\.masked_loss total_variation learns from the clean half.*set"
        ):
            prepare(tiny_sbd("llama", tokenizer), args, adapter)
    prepare(tiny_sbd("llama", tokenizer), args, AdapterSection(only_noisy=True))
    args.ntp_weight = 0.1
    prepare(tiny_sbd("llama", tokenizer), args, None)
