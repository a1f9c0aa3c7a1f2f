"""The loss of one doubled pass, against eq. 14 taken at its word: one forward pass for every block of every document."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from families import tiny_model
from setblock.data.packing import IGNORE, PADDING
from setblock.masks import CLEAN
from setblock.model.attention.attention import layer_windows
from setblock.training.inputs.doubled import TrainingInputs, ntp_inputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.loss import sbd_loss
from training.doubling import END, MASK, VOCABULARY, doubled, loss_of, packed_rows


@pytest.fixture
def rows() -> dict[str, Tensor]:
    return packed_rows()


def tiny(family: str) -> PreTrainedModel:
    return tiny_model(family, vocab_size=VOCABULARY, dtype=torch.float64)


def plain_logits(model: PreTrainedModel, tokens: list[int], block_start: int) -> Tensor:
    """[T, V] of tokens that attend causally before `block_start`, and in both directions from there on."""
    length = len(tokens)
    masks = {}
    for kind, window in layer_windows(model.config).items():
        allowed = torch.ones(length, length, dtype=torch.bool).tril()
        allowed[block_start:, block_start:] = True
        if window is not None:
            allowed &= torch.arange(length)[:, None] - torch.arange(length) < window
        masks[kind] = torch.zeros(length, length, dtype=model.dtype).masked_fill(~allowed, -1e30)[None, None]
    output = model(
        input_ids=torch.tensor([tokens]),
        position_ids=torch.arange(length)[None],
        attention_mask=masks if len(masks) > 1 else next(iter(masks.values())),
        use_cache=False,
    )
    return output.logits[0]


def block_by_block(
    model: PreTrainedModel, rows: dict[str, Tensor], inputs: TrainingInputs, *, logit_shift: bool
) -> tuple[Tensor, Tensor]:
    """Both sums of eq. 14 by its own loops; only x̂ itself is taken from `inputs`."""
    ntp, matp = torch.zeros((), dtype=torch.float64), torch.zeros((), dtype=torch.float64)
    clean = rows["input_ids"].shape[1]
    for b in range(len(rows["input_ids"])):
        for document in set(rows["document_ids"][b].tolist()) - {PADDING}:
            here = rows["document_ids"][b] == document
            x, labels = rows["input_ids"][b, here].tolist(), rows["labels"][b, here].tolist()

            teacher_index = plain_logits(model, x, len(x)).log_softmax(dim=-1)
            for t in range(1, len(x)):
                if labels[t] != IGNORE:
                    ntp = ntp - teacher_index[t - 1, x[t]]

            noisy = torch.arange(len(inputs.input_ids[b])) >= clean
            noisy &= (inputs.document_ids[b] == document) & (inputs.block_ids[b] != CLEAN)
            for block in inputs.block_ids[b, noisy].unique():
                at = (inputs.block_ids[b] == block) & noisy
                x_hat, start = inputs.input_ids[b, at].tolist(), int(inputs.position_ids[b, at][0])
                log_probs = plain_logits(model, x[:start] + x_hat, start).log_softmax(dim=-1)
                for i, token in enumerate(x_hat):
                    t = start + i
                    truth = x[t] if t < len(x) else END
                    carries_loss = t >= len(x) or labels[t] != IGNORE
                    if token == MASK and carries_loss and not (logit_shift and i == 0):
                        matp = matp - log_probs[t - logit_shift, truth]
    return ntp, matp


def gradients(model: PreTrainedModel, loss: Tensor) -> list[Tensor]:
    return list(torch.autograd.grad(loss, list(model.parameters())))


NOISINGS = {
    "paper": Noising(),
    "answers, two copies, whole blocks": Noising(
        mask_rate_per="block", noise_on="targets", noisy_copies=2, complete_last_block=True
    ),
}


@pytest.mark.parametrize("noising", NOISINGS)
@pytest.mark.parametrize(("family", "logit_shift"), [("llama", False), ("llama", True), ("gemma3_text", False)])
def test_one_doubled_pass_is_eq_14(family: str, logit_shift: bool, noising: str, rows: dict[str, Tensor]) -> None:
    model = tiny(family)
    inputs = doubled(rows, logit_shift=logit_shift, noising=NOISINGS[noising])
    ours = loss_of(model, inputs)
    ntp, matp = block_by_block(model, rows, inputs, logit_shift=logit_shift)
    assert ours.ntp_count == len(inputs.ntp.index) > 0
    assert ours.matp_count == len(inputs.matp.index) > 0
    torch.testing.assert_close(ours.ntp_sum, ntp, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(ours.matp_sum, matp, rtol=1e-5, atol=1e-4)
    for a, b in zip(gradients(model, ours.ntp_sum + ours.matp_sum), gradients(model, ntp + matp), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-3 * float(b.abs().max()))


@pytest.mark.parametrize("make", [ntp_inputs, lambda rows: doubled(rows, logit_shift=False, noising=Noising())])
@pytest.mark.parametrize("family", ["llama", "mistral", "gpt2"])
def test_ntp_term_is_the_models_own_loss(
    family: str, make: Callable[[dict[str, Tensor]], TrainingInputs], rows: dict[str, Tensor]
) -> None:
    """A causal LM's own loss is a mean over the targets of each document given to it alone."""
    model = tiny(family)
    ours, total, count = loss_of(model, make(rows)), 0.0, 0
    for b in range(2):
        for document in set(rows["document_ids"][b].tolist()) - {PADDING}:
            here = rows["document_ids"][b] == document
            labels = rows["labels"][b, here][None]
            targets = int((labels[:, 1:] != IGNORE).sum())
            total += float(model(input_ids=rows["input_ids"][b, here][None], labels=labels).loss.detach()) * targets
            count += targets
    assert ours.ntp_count == count
    assert float(ours.ntp_sum.detach()) == pytest.approx(total, rel=1e-5)


def test_logits_are_computed_where_a_loss_is_only(rows: dict[str, Tensor]) -> None:
    model, seen = tiny("llama"), []
    inputs = doubled(rows, logit_shift=False, noising=Noising())
    model.lm_head.register_forward_hook(lambda module, args, output: seen.append((args[0].shape, output.shape)))
    loss_of(model, inputs)
    targets = len(inputs.ntp.index) + len(inputs.matp.index)
    assert targets < inputs.input_ids.numel()
    # The hook that gathers comes after ours was registered, so what the head itself got is in its output.
    assert [output for _, output in seen] == [(1, targets, VOCABULARY)]
    assert model(rows["input_ids"]).logits.shape[:2] == rows["input_ids"].shape  # and it gathers no more


def test_no_masked_token_and_no_target() -> None:
    logits = torch.zeros(0, 7)
    none = torch.zeros(0, dtype=torch.long)
    loss = sbd_loss(logits, none, none)
    assert (float(loss.ntp_sum), float(loss.matp_sum), loss.ntp_count, loss.matp_count) == (0, 0, 0, 0)
