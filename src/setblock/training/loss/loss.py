"""The SBD loss: the next-token (NTP) plus the masked-token (MATP) term (eq. 14), from logits, or hidden states and a
head, and targets. `setblock.training.loss.forward` finds the outputs of a batch that have a target.

The loss at a masked token is its cross entropy, or the total variation between its distribution and the clean half's. The clean
half of the same pass is then the teacher: it has read all tokens before the masked one, and predicts it as a next token. Method
`exact` checks drafts against this distribution. With a clean distribution p and the block's own q, sampling accepts a draft
with probability Σ min(p, q) = 1 - TV(p, q) (arXiv 2211.17192).

The logits of M targets over a vocabulary of V are the largest tensor of a training step: in float32, with softmax and gradient,
M * V * 12 bytes, 70 GiB for 48k targets and V = 128k. In chunks, only a part of them exists at a time, and the forward pass
already computes its gradients. So the backward pass needs no weights: a sharded model may have freed them by then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

MaskedLoss = Literal["cross_entropy", "total_variation"]

LogitsOf = Callable[[slice], Tensor]
"""A function from a slice of the masked tokens that are learned to the teacher's logits [m, V]."""

LOGITS_AT_ONCE = 1 << 26
"""The most logits of a chunk: 256 MiB in float32."""

Head = Callable[[Tensor], Tensor]

LossesOf = Callable[[Tensor, slice], Tensor]
"""A function from the logits [m, V] of a slice of all outputs, and that slice, to their losses [m]."""


def in_float32(logits: Tensor) -> Tensor:
    """Return the logits in float32, or as they are in float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """Return the cross entropy of each target [m] int64, in nats, [m] from logits [m, V]."""
    return F.cross_entropy(in_float32(logits), targets, reduction="none")


def total_variations(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return TV(p, q) = ½ Σ |p - q| of each row, in 0..1: [m] from logits [m, V] of the model's q and the teacher's p,
    through which no gradient goes. That of the model's logits is q (s - Σ q s), with s = ½ sign(q - p)."""
    ours, theirs = (in_float32(each).softmax(dim=-1) for each in (logits, teacher_logits.detach()))
    return (ours - theirs).abs().sum(dim=-1) / 2


def logits_of_hidden(hidden: Tensor, head: Head) -> LogitsOf:
    """Return a function that computes a teacher's logits from its hidden states [M, D], a slice at a time."""

    @torch.no_grad()
    def logits_of(here: slice) -> Tensor:
        return head(hidden[here])

    return logits_of


@dataclass(frozen=True)
class SBDLoss:
    """The loss of eq. 14 over some targets."""

    total: Tensor  # the loss to minimise: both terms, each target times its weight
    ntp_sum: Tensor  # for the log, the next-token term: a sum over its targets, each of weight 1, in nats
    matp_sum: Tensor  # the same of the masked-token term; total variations have no unit
    ntp_count: int  # how many targets each has
    matp_count: int


def sbd_loss(
    outputs: Tensor,
    ntp_targets: Tensor,
    matp_targets: Tensor,
    *,
    ntp_weight: float = 1.0,
    matp_weight: float = 1.0,
    teacher: LogitsOf | None = None,
    weighted: Callable[[Tensor, Tensor, LossesOf], tuple[Tensor, Tensor]] | None = None,
) -> SBDLoss:
    """Return the loss of eq. 14 at M outputs of a pass, as sums: the trainer divides them by the number of next tokens of
    a whole step. The outputs are first those of M1 next tokens, then those of M2 masked ones, with their ids as targets and
    one weight for each kind. `outputs` are the logits [M, V]; or, with `weighted` (such as `chunked_loss`), the hidden
    states [M, D] that it computes logits of, chunk by chunk. `teacher` gives the clean half's logits of the masked
    tokens, if their loss is the total variation."""
    split, targets = len(ntp_targets), torch.cat([ntp_targets, matp_targets])

    def losses_of(logits: Tensor, here: slice) -> Tensor:
        if teacher is None:
            return cross_entropies(logits, targets[here])
        of_next = ntp_targets[here]  # none where the slice begins at a masked token
        masked = slice(max(0, here.start - split), max(0, here.start + len(logits) - split))
        varied = total_variations(logits[len(of_next) :], teacher(masked))
        return torch.cat([cross_entropies(logits[: len(of_next)], of_next), varied])

    weights = torch.full((len(targets),), ntp_weight, device=targets.device)
    weights[split:] = matp_weight
    if weighted is None:
        losses = losses_of(outputs, slice(0, len(outputs)))
        total = (losses * weights).sum()
    else:
        total, losses = weighted(outputs, weights, losses_of)
    return SBDLoss(total, losses[:split].sum(), losses[split:].sum(), split, len(matp_targets))


def chunked_loss(
    hidden: Tensor, weights: Tensor, losses_of: LossesOf, *, head: Head, parameters: Sequence[Tensor], chunk: int
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the losses of a head's logits, a scalar, and each loss [M], without gradient; both at
    least in float32. `hidden` is [M, D], `weights` [M] float32, and `parameters` are the head's trained weights. The
    logits of only `chunk` (at least 1) hidden states exist at once. Losses are weighted here, since the gradients are
    computed here."""
    wanted = torch.is_grad_enabled() and (hidden.requires_grad or any(p.requires_grad for p in parameters))
    apply: Callable[..., tuple[Tensor, Tensor]] = _ChunkedLoss.apply
    return apply(hidden, weights, losses_of, head, chunk, wanted, *parameters)


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weights: Tensor,
        losses_of: LossesOf,
        head: Head,
        chunk: int,
        wanted: bool,
        *parameters: Tensor,
    ) -> tuple[Tensor, Tensor]:
        kind = torch.promote_types(hidden.dtype, torch.float32)
        losses = torch.zeros(len(hidden), dtype=kind, device=hidden.device)
        hidden_gradient = torch.zeros_like(hidden) if wanted else None
        # Many chunks are summed in each of these, which needs more digits than half precision has.
        gradients = [torch.zeros_like(p, dtype=torch.promote_types(p.dtype, torch.float32)) for p in parameters]
        for start in range(0, len(hidden), chunk):
            here = slice(start, start + chunk)
            with torch.set_grad_enabled(wanted):
                part = hidden[here].detach().requires_grad_(wanted)
                each = losses_of(head(part), here)  # [m]
                total = (each * weights[here]).sum()
            losses[here] = each.detach()
            if hidden_gradient is not None:
                of_part, *of_parameters = torch.autograd.grad(total, [part, *parameters], allow_unused=True)
                hidden_gradient[here] = of_part
                for gradient, new in zip(gradients, of_parameters, strict=True):
                    if new is not None:
                        gradient += new
        if hidden_gradient is not None:
            kept = [gradient.to(p.dtype) for gradient, p in zip(gradients, parameters, strict=True)]
            ctx.save_for_backward(hidden_gradient, *kept)
        ctx.mark_non_differentiable(losses)
        return (losses * weights).sum(), losses

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> Any:
        hidden_gradient, *gradients = (saved * upstream[0] for saved in ctx.saved_tensors)
        return hidden_gradient, None, None, None, None, None, *gradients
