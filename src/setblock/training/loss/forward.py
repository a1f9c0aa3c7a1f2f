"""One forward pass of training: inputs -> logits, or inputs -> loss, under the training mask.

Also finds a model's head (hidden states -> logits), with whatever the model does to its logits afterwards. The scalings
of Transformers' models are listed here; which one a model has is found by running it.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import broadcast_object_list
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel

from setblock.errors import SetBlockError
from setblock.masks import AttentionMask, MaskMod, train_mask
from setblock.model.attention.attention import layer_windows, mask_form, plan_of
from setblock.model.attention.document_attention import (
    CleanKeys,
    Half,
    Layout,
    attends_runs,
    document_attention,
    document_masks,
)
from setblock.model.runners.forward import Take, logits_at
from setblock.training.inputs.doubled import Targets, TrainingInputs
from setblock.training.loss.loss import (
    LOGITS_AT_ONCE,
    LogitsOf,
    MaskedLoss,
    SBDLoss,
    chunked_loss,
    logits_of_hidden,
    sbd_loss,
)

LARGEST_DENSE_MASK = 1 << 30
"""The most bytes that the dense attention masks of a pass may take."""

_FACTORS = ("logit_scale", "logits_scaling", "lm_head_multiplier")  # Cohere; Granite, HyperCLOVA X; Falcon-H1
_TOLERANCE = 0.02  # relative; rounding stays below it in any dtype, a scaling that is left out well above

CleanHalf = Callable[[TrainingInputs, nn.Module | None], tuple[CleanKeys, LogitsOf]]
"""A function that runs the clean half of inputs once, without a graph; the module is `wrapped` of `training_logits`. It
returns the half's keys and values, and the logits at `TrainingInputs.teacher_index`."""


@dataclass(frozen=True, eq=False)
class SplitHead:
    """The head of a model as a function of hidden states, to be called inside the model's forward pass."""

    module: nn.Module  # the model's own head
    scaling: Callable[[Tensor], Tensor]  # what the model does to the logits afterwards

    def __call__(self, hidden: Tensor) -> Tensor:
        """Map [m, D] to [m, V]."""
        # `forward`, since we are in a hook of the module: what wraps it (sharding, casting) has been done already.
        logits: Tensor = self.scaling(self.module.forward(hidden[None])[0])
        return logits


def training_logits(
    model: PreTrainedModel,
    inputs: TrainingInputs,
    index: Tensor,
    *,
    wrapped: nn.Module | None = None,
    half: Half = "both",
    clean_keys: CleanKeys | None = None,
    take: Take | None = None,
) -> Tensor:
    """Return the logits [M, V] at `index` [M] of the flattened [B * T] inputs, or raise `SetBlockError` if the attention mask
    would be larger than `LARGEST_DENSE_MASK`.

    Args:
        model: the model itself.
        wrapped: the model as a trainer has wrapped it, called in its place.
        half: which tokens to run; `index` still counts all.
        clean_keys: the clean half's keys and values. A pass over that half fills them; one over the noisy half reads them.
        take: see `logits_at`.
    """
    if plan_of(model).keeps_state:  # each row is causal, and padded behind its end
        return logits_at(
            model,
            index,
            input_ids=inputs.input_ids,
            position_ids=inputs.position_ids,
            attention_mask=None,
            wrapped=wrapped,
            take=take,
        )
    length = inputs.input_ids.shape[1]
    first, end = inputs.columns(half)
    layout = Layout(model.config.get_text_config(), inputs.rows, half=half, clean_keys=clean_keys)
    more: dict[str, Any] = {"layout": layout}
    if attends_runs(model):
        _refuse_large_mask(model, inputs, sum(layout.mask_sizes))
        mask = document_masks(layout, partial(_train_mask, inputs), device=inputs.input_ids.device)
    else:
        mask = _mask(model, inputs, first=first, end=end)
        more = more if plan_of(model).by_document and clean_keys is not None else {}
    with document_attention(model):
        return logits_at(
            model,
            index // length * (end - first) + index % length - first,
            input_ids=inputs.input_ids[:, first:end],
            position_ids=inputs.position_ids[:, first:end],
            attention_mask=mask,
            wrapped=wrapped,
            take=take,
            **more,
        )


def training_loss(
    model: PreTrainedModel,
    inputs: TrainingInputs,
    *,
    head: SplitHead | None,
    ntp_weight: float,
    matp_weight: float,
    wrapped: nn.Module | None = None,
    logits_at_once: int = LOGITS_AT_ONCE,
    always_chunked: bool = False,
    masked_loss: MaskedLoss = "cross_entropy",
    clean_half: CleanHalf | None = None,
) -> SBDLoss:
    """Return the loss of eq. 14 over one batch, from one forward pass over both halves, or from one over each where the
    clean half is frozen.

    If the backward pass runs layers again (activation checkpointing), it must run in `document_attention`, too.

    Args:
        head: the model's head, to compute logits in chunks where there are more than `logits_at_once`, or `always_chunked`;
            None to never do so.
        masked_loss: of `SBDConfig`. A loss with a teacher leaves out masked tokens that no clean output predicts.
        clean_half: runs the clean half where it is frozen, so that there is no next-token term.
        model, wrapped: see `training_logits`, which also says what is raised.
    """
    # 1. The outputs that learn, and those that teach
    matp = inputs.matp
    has_teacher = masked_loss != "cross_entropy"
    if has_teacher:
        matp = Targets(matp.index[inputs.has_teacher], matp.token_ids[inputs.has_teacher])
    loss_of = partial(
        sbd_loss,
        ntp_targets=inputs.ntp.token_ids,
        matp_targets=matp.token_ids,
        ntp_weight=ntp_weight,
        matp_weight=matp_weight,
    )
    learned = torch.cat([inputs.ntp.index, matp.index])  # [M]
    teacher: LogitsOf | None = None
    run = partial(training_logits, model, inputs, wrapped=wrapped)
    if clean_half is not None:
        clean_keys, frozen = clean_half(inputs, wrapped)
        teacher = frozen if has_teacher else None
        run = partial(run, half="noisy", clean_keys=clean_keys)
    teaches_itself = has_teacher and teacher is None
    index = torch.cat([learned, inputs.teacher_index]) if teaches_itself else learned  # [M], or [M + M2]

    # 2. The loss from all logits at once, where they are few
    chunk = max(1, logits_at_once // int(model.config.get_text_config().vocab_size))
    if head is None or (len(index) <= chunk and not always_chunked):
        logits = run(index)
        theirs = logits[len(learned) :].__getitem__ if teaches_itself else teacher
        return loss_of(logits[: len(learned)], teacher=theirs)

    # 3. Otherwise inside of the forward pass, where a wrapped (sharded) model has the head's weights
    found: list[SBDLoss] = []

    def take_loss(hidden: Tensor) -> Tensor:
        theirs = logits_of_hidden(hidden[len(learned) :], head) if teaches_itself else teacher
        trained = [p for p in head.module.parameters() if p.requires_grad]
        in_chunks = partial(chunked_loss, head=head, parameters=trained, chunk=chunk)
        found.append(loss_of(hidden[: len(learned)], teacher=theirs, weighted=in_chunks))
        return hidden[:0]

    logits = run(index, take=take_loss)  # [0, V]
    (loss,) = found
    # The sum of no logits is 0, but a wrapper waits for gradients of the model's output before those of weights.
    return replace(loss, total=loss.total + logits.sum())


def _mask(model: PreTrainedModel, inputs: TrainingInputs, *, first: int, end: int) -> AttentionMask:
    """Return the mask over whole rows, of the queries from `first` on and the keys before `end`."""
    batch, device = len(inputs.input_ids), inputs.input_ids.device
    implementation = plan_of(model).implementation
    if implementation != "flex_attention":
        itemsize = torch.bool.itemsize if implementation == "sdpa" else model.dtype.itemsize
        _refuse_large_mask(model, inputs, batch * (end - first) * end * itemsize)

    def mask_mod_for(window: int | None) -> MaskMod:
        allowed = _train_mask(inputs, window)
        return allowed if not first else lambda b, h, q_idx, kv_idx: allowed(b, h, q_idx + first, kv_idx)

    form = mask_form(model, most=max(batch, end), device=device, implementation=implementation)
    return form.mask(mask_mod_for, batch=batch, queries=end - first, keys=end)


def _train_mask(inputs: TrainingInputs, window: int | None) -> MaskMod:
    return train_mask(
        position_ids=inputs.position_ids,
        document_ids=inputs.document_ids,
        block_ids=inputs.block_ids,
        limits=inputs.limits,
        window=window,
        causal_block=inputs.causal_block,
    )


def _refuse_large_mask(model: PreTrainedModel, inputs: TrainingInputs, size: int) -> None:
    """Raise `SetBlockError` if a mask of `size` bytes is too large."""
    batch, length = inputs.input_ids.shape
    needed = size * len(layer_windows(model.config.get_text_config()))
    if needed > LARGEST_DENSE_MASK:
        raise SetBlockError(
            f"the attention masks of {batch} x {length:,} tokens would take {needed / 2**30:.1f} GiB, more than the "
            f"{LARGEST_DENSE_MASK / 2**30:g} GiB allowed: set model.attn_implementation to flex_attention, or lower "
            "training.per_device_train_batch_size or data.row_length"
        )


def split_head(model: PreTrainedModel) -> SplitHead | None:
    """Return the head of a model, or None if no head known here gives the model's own logits. The main process runs the
    model once, over a few tokens, and sends its finding to the others, which may not have the weights. Every process
    must call this. A model whose weights are in no process can't be tried."""
    module = model.get_output_embeddings()
    if module is None:
        return None
    heads = [SplitHead(module, scaling) for scaling in _scalings(model.config.get_text_config())]
    is_main = not PartialState._shared_state or PartialState().is_main_process
    found = [_first_right(model, heads) if is_main else None]
    if PartialState._shared_state:
        broadcast_object_list(found)
    (number,) = found
    return None if number is None else heads[number]


@torch.no_grad()
def _first_right(model: PreTrainedModel, heads: Sequence[SplitHead]) -> int | None:
    """Return the index of the first head that gives the model's own logits."""
    if any(p.is_meta for p in model.parameters()):
        return None
    seen: list[Tensor] = []

    def keep(hidden: Tensor) -> Tensor:
        seen.append(hidden)
        return hidden

    every, training = torch.arange(6, device=model.device), model.training
    tokens = (every * 7 + 11)[None] % len(model.get_input_embeddings().weight)
    where: dict[str, Any] = {"input_ids": tokens, "position_ids": every[None], "attention_mask": None}
    try:
        logits = logits_at(model.eval(), every, **where, take=keep).float()
    finally:
        model.train(training)
    (hidden,) = seen  # [T, D]
    for number, head in enumerate(heads):
        ours = head(hidden).float()
        if ours.shape == logits.shape and (ours - logits).norm() <= _TOLERANCE * logits.norm():
            return number
    return None


def _scalings(config: PretrainedConfig) -> Iterator[Callable[[Tensor], Tensor]]:
    yield lambda logits: logits
    cap = getattr(config, "final_logit_softcapping", None)
    if cap:
        yield lambda logits: torch.tanh(logits / cap) * cap
    for name in _FACTORS:
        factor = getattr(config, name, None)
        if isinstance(factor, int | float) and factor:
            yield partial(torch.mul, other=factor)
            yield partial(torch.mul, other=1 / factor)
