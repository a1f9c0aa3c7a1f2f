"""The cross entropy in chunks is the plain one: the same loss, the same gradients, in every family; and it keeps few logits."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from families import FAMILIES, tiny_model
from setblock.training.inputs.doubled import TrainingInputs
from setblock.training.loss.forward import split_head, training_loss
from setblock.training.loss.loss import SBDLoss, chunked_loss, cross_entropies
from training.doubling import VOCABULARY, doubled, packed_rows

# Families whose models scale their logits, and two more heads; on top of the tests' own.
SCALED: dict[str, dict[str, Any]] = {
    "gemma3_text": FAMILIES["gemma3_text"] | {"final_logit_softcapping": 3.0},
    "cohere": FAMILIES["llama"] | {"logit_scale": 0.25},
    "granite": FAMILIES["llama"] | {"logits_scaling": 4.0},
    "llama": FAMILIES["llama"] | {"tie_word_embeddings": True},
    "phi": FAMILIES["llama"],  # a head with a bias
}
CASES = [*((family, {}) for family in FAMILIES), *SCALED.items()]


@pytest.fixture(scope="module")
def inputs() -> TrainingInputs:
    return doubled(packed_rows())


def tiny(family: str, dtype: torch.dtype = torch.float64, **overrides: Any) -> PreTrainedModel:
    model = tiny_model(family, vocab_size=VOCABULARY, dtype=dtype, **overrides)
    model.config._experts_implementation = "eager"  # grouped matrix products have no float64
    return model


def loss_of(model: PreTrainedModel, inputs: TrainingInputs, *, targets_at_once: int | None) -> SBDLoss:
    return training_loss(
        model,
        inputs,
        head=None if targets_at_once is None else split_head(model),
        ntp_weight=0.5,
        matp_weight=3.0,
        logits_at_once=(targets_at_once or 0) * VOCABULARY,
    )


def gradients(model: PreTrainedModel, loss: SBDLoss) -> dict[str, Tensor]:
    model.zero_grad()
    (loss.total / 7).backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize(("family", "overrides"), CASES, ids=lambda case: case if isinstance(case, str) else "")
def test_chunks_change_neither_loss_nor_gradients(
    family: str, overrides: dict[str, Any], inputs: TrainingInputs
) -> None:
    """Among them soft-capped, scaled, tied and biased heads; the chunks end in the middle of a term, and one is short."""
    model = tiny(family, **overrides)
    plain = loss_of(model, inputs, targets_at_once=None)
    expected = gradients(model, plain)
    assert len(inputs.ntp.index) % 7 != 0
    chunked = loss_of(model, inputs, targets_at_once=7)
    found = gradients(model, chunked)
    assert found.keys() == expected.keys()
    for name in ("total", "ntp_sum", "matp_sum"):
        torch.testing.assert_close(getattr(chunked, name), getattr(plain, name), rtol=1e-9, atol=1e-9)
    assert (chunked.ntp_count, chunked.matp_count) == (plain.ntp_count, plain.matp_count)
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-7, atol=1e-9, msg=name)


def test_chunks_under_autocast_and_with_weights_of_half_precision(inputs: TrainingInputs) -> None:
    """To the rounding of bfloat16, from which sums over chunks are spared."""
    for dtype, cast in ((torch.float32, True), (torch.bfloat16, False)):
        model = tiny("llama", dtype, tie_word_embeddings=True, initializer_range=0.2)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=cast):
            plain = gradients(model, loss_of(model, inputs, targets_at_once=None))
            chunked = gradients(model, loss_of(model, inputs, targets_at_once=7))
        for name, gradient in plain.items():
            assert (chunked[name] - gradient).norm() < 0.03 * gradient.norm(), name


def test_without_gradients_there_are_none(inputs: TrainingInputs) -> None:
    model = tiny("llama")
    with torch.no_grad():
        loss = loss_of(model, inputs, targets_at_once=7)
    assert not loss.total.requires_grad
    torch.testing.assert_close(loss.total, loss_of(model, inputs, targets_at_once=None).total.detach())


def test_a_frozen_head_gets_no_gradient(inputs: TrainingInputs) -> None:
    model = tiny("llama")
    model.lm_head.requires_grad_(False)
    expected = gradients(model, loss_of(model, inputs, targets_at_once=None))
    found = gradients(model, loss_of(model, inputs, targets_at_once=7))
    assert "lm_head.weight" not in found
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-7, atol=1e-9)


def test_no_more_logits_than_a_chunk_has_are_ever_there(inputs: TrainingInputs) -> None:
    model, rows = tiny("gemma2"), []
    model.lm_head.forward = _counting(model.lm_head, rows)  # type: ignore[method-assign]
    head = split_head(model)
    rows.clear()
    loss = training_loss(model, inputs, head=head, ntp_weight=1, matp_weight=1, logits_at_once=7 * VOCABULARY)
    assert max(rows) == 7
    assert sum(rows) == loss.ntp_count + loss.matp_count
    assert model(inputs.input_ids).logits.shape[:2] == inputs.input_ids.shape, "nothing is gathered any more"
    rows.clear()
    training_loss(model, inputs, head=head, ntp_weight=1, matp_weight=1, always_chunked=True)
    assert rows == [loss.ntp_count + loss.matp_count, 0], "a chunk is as large as may be, also where one is asked for"


def _counting(module: nn.Module, rows: list[int]) -> Any:
    forward = module.forward

    def counted(hidden: Tensor) -> Tensor:
        rows.append(hidden.shape[-2])
        return forward(hidden)

    return counted


def test_few_logits_are_computed_at_once_as_ever(inputs: TrainingInputs) -> None:
    """To the bit: small models train as they did before there were chunks."""
    model = tiny("llama", torch.float32)
    with torch.no_grad():
        plain = loss_of(model, inputs, targets_at_once=None)
        few = loss_of(model, inputs, targets_at_once=len(inputs.ntp.index) + len(inputs.matp.index))
    assert torch.equal(few.total, plain.total)


def test_weights_and_scale_of_the_gradient() -> None:
    """Against the definition: Σ w_i · (logsumexp - logit of the target), times what the sum is multiplied by later."""
    torch.manual_seed(0)
    hidden, weight = torch.randn(5, 3, dtype=torch.float64), torch.randn(4, 3, dtype=torch.float64)
    targets, weights = torch.tensor([0, 3, 1, 1, 2]), torch.tensor([1.0, 0.0, 2.0, 0.5, 1.0])
    hidden.requires_grad_()
    weight.requires_grad_()
    total, losses = chunked_loss(
        hidden,
        weights,
        lambda logits, here: cross_entropies(logits, targets[here]),
        head=lambda h: h @ weight.T,
        parameters=[weight],
        chunk=2,
    )
    (total * 0.25).backward()
    found = hidden.grad, weight.grad
    hidden.grad = weight.grad = None
    logits = hidden @ weight.T
    plain = logits.logsumexp(dim=1) - logits[torch.arange(5), targets]
    torch.testing.assert_close(losses, plain.detach())
    ((plain * weights).sum() * 0.25).backward()
    torch.testing.assert_close(found, (hidden.grad, weight.grad))


def test_a_scaling_that_is_not_known_is_found_out(inputs: TrainingInputs) -> None:
    """The plain path is taken then; a chunked loss would be that of another model."""
    model = tiny("llama")
    assert split_head(model) is not None
    forward = model.forward

    def scaled(*args: Any, **kwargs: Any) -> Any:
        output = forward(*args, **kwargs)
        output.logits = output.logits**3
        return output

    model.forward = scaled  # type: ignore[method-assign]
    assert split_head(model) is None
