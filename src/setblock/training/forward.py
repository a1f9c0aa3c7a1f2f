"""One forward pass of training: inputs -> logits, or inputs -> loss, under the training mask."""

from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from setblock.data.packing import PADDING
from setblock.errors import SetBlockError
from setblock.masks import MaskMod, train_mask
from setblock.model.attention import AttentionMask, attention_mask, layer_windows
from setblock.model.documents import DOCUMENT_SDPA, document_attention, document_masks, document_rows
from setblock.model.forward import logits_at
from setblock.training.cross_entropy import LOGITS_AT_ONCE, chunked_loss
from setblock.training.distillation import Distillation, LogitsOf, divergences, logits_of_hidden
from setblock.training.head import SplitHead
from setblock.training.inputs import TrainingInputs
from setblock.training.loss import SBDLoss, sbd_loss, sbd_loss_by_liger, sbd_loss_in_chunks

LARGEST_DENSE_MASK = 1 << 30
"""Bytes that the attention masks of a pass may take where they are dense: by PyTorch's SDPA a document of 32,768 tokens, which
is 16,384 and as many noisy ones."""


def training_logits(
    model: PreTrainedModel, inputs: TrainingInputs, index: Tensor, *, wrapped: nn.Module | None = None
) -> Tensor:
    """The logits [M, V] at `index` [M] of the flattened [B * T] inputs.

    Args:
        model: the model itself.
        wrapped: what to call in the model's stead, where a trainer has wrapped it.

    Raises:
        SetBlockError: the attention mask would be larger than `LARGEST_DENSE_MASK`.
    """
    config = model.config.get_text_config()
    common: dict[str, Any] = {
        "input_ids": inputs.input_ids,
        "position_ids": inputs.position_ids,
        "wrapped": wrapped,
    }
    if config._attn_implementation not in ("sdpa", DOCUMENT_SDPA):
        return logits_at(model, index, attention_mask=_mask(model, inputs), **common)
    rows = document_rows(inputs.document_ids, padding=PADDING)
    _refuse_large_mask(model, inputs, sum(row.pairs for row in rows))
    masks = document_masks(config, rows, partial(_train_mask, inputs), device=inputs.input_ids.device)
    with document_attention(config):
        return logits_at(model, index, attention_mask=masks, document_rows=rows, **common)


def training_loss(
    model: PreTrainedModel,
    inputs: TrainingInputs,
    *,
    head: SplitHead | None,
    ntp_weight: float,
    matp_weight: float,
    wrapped: nn.Module | None = None,
    logits_at_once: int = LOGITS_AT_ONCE,
    by_liger: bool = False,
    distillation: Distillation | None = None,
) -> SBDLoss:
    """Eq. 14 over one batch, from one forward pass.

    Where layers are run again in the backward pass (activation checkpointing), that is to run in `document_attention`, too.

    Args:
        head: the model's, to compute the logits in chunks where there are more than `logits_at_once`; None to never do.
        by_liger: compute them by Liger's kernel instead; the head must be one linear layer then.
        distillation: the third term, if there is one.
        model, wrapped: see `training_logits`, which also says what is raised.
    """
    index = torch.cat([inputs.ntp.index, inputs.matp.index])  # [M]
    learned, split = len(index), len(inputs.ntp.index)
    terms: dict[str, Any] = {
        "ntp_targets": inputs.ntp.token_ids,
        "matp_targets": inputs.matp.token_ids,
        "ntp_weight": ntp_weight,
        "matp_weight": matp_weight,
    }
    # Which of the masked tokens have a teacher, and what it says of them.
    taught = (inputs.causal >= 0).nonzero(as_tuple=True)[0]  # [M3]
    teacher: LogitsOf | None = None
    if distillation is not None and distillation.teacher is not None:
        teacher = distillation.teacher(inputs, inputs.causal[taught])
    elif distillation is not None:
        index = torch.cat([index, inputs.causal[taught]])  # [M + M3]
    vocabulary = int(model.config.get_text_config().vocab_size)
    chunk = max(1, logits_at_once // vocabulary)
    if head is None or len(index) <= chunk:
        logits = training_logits(model, inputs, index, wrapped=wrapped)
        loss = sbd_loss(logits[:learned], **terms)
        if distillation is None:
            return loss
        theirs = logits[learned:] if teacher is None else teacher(slice(None))
        each = divergences(logits[split:learned][taught], theirs)
        return loss.with_distillation(distillation.weight * each.sum(), each)

    # The loss is computed inside of the forward pass, where what wraps the model has its weights ready.
    found: list[SBDLoss] = []

    def take_loss(_: nn.Module, args: tuple[Tensor, ...]) -> None:
        hidden = args[0].reshape(-1, args[0].shape[-1])[index]  # [M, D], or [M + M3, D]
        if by_liger:
            assert isinstance(head.module, nn.Linear)
            loss = sbd_loss_by_liger(hidden[:learned], head=head.module, **terms)
        else:
            loss = sbd_loss_in_chunks(hidden[:learned], head=head, parameters=head.trained, chunk=chunk, **terms)
        if distillation is not None:
            theirs = teacher or logits_of_hidden(hidden[learned:].detach(), head)
            loss = loss.with_distillation(
                *chunked_loss(
                    hidden[split:learned][taught],
                    torch.full((len(taught),), distillation.weight, device=hidden.device),
                    lambda logits, here: divergences(logits, theirs(here)),
                    head=head,
                    parameters=head.trained,
                    chunk=chunk,
                )
            )
        found.append(loss)

    handle = head.module.register_forward_pre_hook(take_loss)
    try:
        logits = training_logits(model, inputs, index[:0], wrapped=wrapped)  # [0, V]
    finally:
        handle.remove()
    (loss,) = found
    # Nothing is added; but what wraps the model waits for gradients of its output before it works on its weights' own.
    return replace(loss, total=loss.total + logits.sum())


def _mask(model: PreTrainedModel, inputs: TrainingInputs) -> AttentionMask:
    """Over whole rows."""
    config = model.config.get_text_config()
    batch, length = inputs.input_ids.shape
    if config._attn_implementation != "flex_attention":
        _refuse_large_mask(model, inputs, batch * length * length * model.dtype.itemsize)
    return attention_mask(
        config,
        partial(_train_mask, inputs),
        batch=batch,
        queries=length,
        keys=length,
        device=inputs.input_ids.device,
        dtype=model.dtype,
    )


def _train_mask(inputs: TrainingInputs, window: int | None) -> MaskMod:
    return train_mask(
        position_ids=inputs.position_ids,
        document_ids=inputs.document_ids,
        block_ids=inputs.block_ids,
        limits=inputs.limits,
        window=window,
    )


def _refuse_large_mask(model: PreTrainedModel, inputs: TrainingInputs, size: int) -> None:
    """`size`: bytes of a mask."""
    batch, length = inputs.input_ids.shape
    needed = size * len(layer_windows(model.config.get_text_config()))
    if needed > LARGEST_DENSE_MASK:
        raise SetBlockError(
            f"the attention masks of {batch} x {length:,} tokens would take {needed / 2**30:.1f} GiB, more than the "
            f"{LARGEST_DENSE_MASK / 2**30:g} GiB allowed: set model.attn_implementation to flex_attention, or lower "
            "training.per_device_train_batch_size or data.row_length"
        )
