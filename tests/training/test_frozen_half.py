"""A clean half that is run once, without a graph, gives the loss and the gradients of both halves in one graph."""

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.data.packing import Document, RowDataset, pack
from setblock.masks import CLEAN
from setblock.model.adapter.adapter import Gate, gate_of
from setblock.model.attention.document_attention import document_attention
from setblock.training.adapter import AdapterSection, add_adapter, frozen_half
from setblock.training.inputs import doubled as inputs_module
from setblock.training.inputs.doubled import Targets, TrainingInputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import split_head, training_loss
from setblock.training.loss.loss import MaskedLoss, SBDLoss
from training import doubling
from training.doubling import batch_of

pytest.importorskip("peft")

LENGTHS = (41, 9, 24, 3, 30)


def trainable(tokenizer: PreTrainedTokenizerBase, family: str) -> tuple[Any, Gate, int]:
    """In float64: a wrapped model whose adapter does something, its gate, and its mask token."""
    sbd = tiny_sbd(family, tokenizer, dtype=torch.float64, tie_word_embeddings=family != "qwen2")
    assert sbd.sbd_config is not None
    torch.manual_seed(0)
    modules = ["q_proj", "v_proj", "o_proj"] if family == "mixtral" else "all-linear"
    wrapped: Any = add_adapter(sbd, AdapterSection(r=4, only_noisy=True, target_modules=modules))
    for name, parameter in wrapped.named_parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.double()
        if "lora_B" in name:
            parameter.data.normal_()
    if family == "mixtral":
        sbd.model.set_experts_implementation("eager")  # the others have no kernel for float64
    gate = gate_of(sbd.model)
    assert gate is not None
    return wrapped.train(), gate, sbd.sbd_config.mask_token_id


def doubled(mask: int, *, copies: int, logit_shift: bool, idle_blocks: bool) -> TrainingInputs:
    generator = torch.Generator().manual_seed(0)
    documents = [
        Document(torch.randint(2, 60, (n,), generator=generator).tolist(), [i >= n // 3 for i in range(n)])
        for n in LENGTHS
    ]
    rows = RowDataset(pack(documents, row_length=50, pad_token_id=0))
    noising = Noising(
        noisy_copies=copies,
        complementary_masks=copies % 2 == 0,
        noise_on="targets",
        random_offsets=0.5,
        complete_last_block=True,
    )
    how = {
        "noising": noising,
        "logit_shift": logit_shift,
        "noise_ids": range(mask, mask + 1),
        "idle_blocks": idle_blocks,
    }
    inputs = doubling.doubled(batch_of(rows), block_size=3, **how)
    none = inputs.ntp.index[:0]
    return TrainingInputs(**(vars(inputs) | {"ntp": Targets(none, none)}))


def gradients(
    model: Any,
    gate: Gate,
    inputs: TrainingInputs,
    *,
    frozen: bool,
    masked_loss: MaskedLoss = "cross_entropy",
    at_once: int = 1 << 30,
) -> tuple[SBDLoss, dict[str, Tensor]]:
    model.zero_grad()
    gate.set(None)
    head, clean_half = split_head(model), frozen_half(model.get_base_model())
    if not frozen:
        gate.set(inputs.block_ids != CLEAN)
    with document_attention(model):
        loss = training_loss(
            model,
            inputs,
            head=head,
            ntp_weight=1.0,
            matp_weight=0.5,
            logits_at_once=at_once,
            masked_loss=masked_loss,
            clean_half=clean_half if frozen else None,
        )
        torch.autograd.backward(loss.total)
    return loss, {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def check(model: Any, gate: Gate, inputs: TrainingInputs, **how: Any) -> None:
    expected, of_one_graph = gradients(model, gate, inputs, frozen=False, **how)
    loss, found = gradients(model, gate, inputs, frozen=True, **how)
    for name in ("total", "matp_sum", "matp_count"):
        torch.testing.assert_close(getattr(loss, name), getattr(expected, name))
    assert found.keys() == of_one_graph.keys() == {n for n, p in model.named_parameters() if p.requires_grad}
    assert any("trainable_tokens" in name for name in found)
    for name, gradient in of_one_graph.items():
        assert gradient.any(), name
        torch.testing.assert_close(found[name], gradient, msg=lambda text, name=name: f"{name}: {text}")


@pytest.mark.in_turn
@pytest.mark.parametrize("logit_shift", [False, True])
@pytest.mark.parametrize("family", ["llama", "qwen2", "qwen3", "mistral", "gemma3_text", "phi3", "olmo2", "mixtral"])
def test_families(tokenizer: PreTrainedTokenizerBase, family: str, logit_shift: bool) -> None:
    model, gate, mask = trainable(tokenizer, family)
    check(model, gate, doubled(mask, copies=2, logit_shift=logit_shift, idle_blocks=False))


@pytest.mark.in_turn
@pytest.mark.parametrize("run_length", [1, 16, 1 << 30])
@pytest.mark.parametrize("copies", [1, 4, 7])
def test_copies_and_runs(
    tokenizer: PreTrainedTokenizerBase, copies: int, run_length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many copies there are, and however many blocks are attended together."""
    monkeypatch.setattr(inputs_module, "RUN_LENGTH", run_length)
    model, gate, mask = trainable(tokenizer, "gemma3_text")
    check(model, gate, doubled(mask, copies=copies, logit_shift=True, idle_blocks=True))


@pytest.mark.parametrize("masked_loss", ["cross_entropy", "total_variation"])
@pytest.mark.parametrize("at_once", [7 * 300, 1 << 30])
def test_in_chunks_and_from_a_teacher(
    tokenizer: PreTrainedTokenizerBase, at_once: int, masked_loss: MaskedLoss
) -> None:
    model, gate, mask = trainable(tokenizer, "llama")
    inputs = doubled(mask, copies=2, logit_shift=False, idle_blocks=False)
    check(model, gate, inputs, masked_loss=masked_loss, at_once=at_once)


def test_layers_that_run_again(tokenizer: PreTrainedTokenizerBase) -> None:
    model, gate, mask = trainable(tokenizer, "qwen3")
    inputs = doubled(mask, copies=2, logit_shift=False, idle_blocks=False)
    _, expected = gradients(model, gate, inputs, frozen=True)
    model.activation_checkpointing_enable()
    _, found = gradients(model, gate, inputs, frozen=True)
    assert found.keys() == expected.keys()
    torch.testing.assert_close(found, expected)


def test_blocks_of_which_nothing_is_learned_change_nothing(tokenizer: PreTrainedTokenizerBase) -> None:
    model, gate, mask = trainable(tokenizer, "llama")
    inputs = [doubled(mask, copies=2, logit_shift=True, idle_blocks=idle) for idle in (True, False)]
    assert inputs[1].input_ids.shape[1] < inputs[0].input_ids.shape[1]
    found = [gradients(model, gate, each, frozen=True)[1] for each in inputs]
    torch.testing.assert_close(*found)
