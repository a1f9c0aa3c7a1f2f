"""Compute the SBD loss: the next-token (NTP) plus the masked-token (MATP) term (eq. 14). `forward` finds the outputs of a batch
that have a target.

Knows logits, or hidden states and a head, and targets. Knows nothing of models, or of how targets are chosen.

The loss at a masked token is its cross entropy, or the total variation between its distribution and the clean half's. The clean
half of the same pass is then the teacher: it has read all tokens before the masked one, and predicts it as a next token. Method
`exact` checks drafts against this distribution. With a clean distribution p and the block's own q, sampling accepts a draft
with probability Σ min(p, q) = 1 - TV(p, q) (arXiv 2211.17192).

The logits of M targets over a vocabulary of V are the largest tensor of a training step: in float32, with their softmax and
their gradient, M * V * 12 bytes, 70 GiB for 48k targets and V = 128k. In chunks, only a part of them exists at a time, and the
forward pass already computes its gradients. So the backward pass needs no weights: a sharded model may have freed them by then.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

MaskedLoss = Literal["cross_entropy", "total_variation"]

LogitsOf = Callable[[slice], Tensor]
"""The teacher's logits [m, V] for a slice of the masked tokens that are learned."""

LOGITS_AT_ONCE = 1 << 26
"""Logits that a chunk may have: 256 MiB in float32."""

Head = Callable[[Tensor], Tensor]

LossesOf = Callable[[Tensor, slice], Tensor]
"""A function from the logits [m, V] of a slice of all outputs, and that slice, to their losses [m]."""

Weighted = Callable[[Tensor, LossesOf], tuple[Tensor, Tensor]]
"""A function from the weights [M] of all outputs, and a function to their losses, to the weighted sum and the losses [M]."""


def in_float32(logits: Tensor) -> Tensor:
    """Return the logits in float32, or as they are in float64."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))


def cross_entropies(targets: Tensor) -> LossesOf:
    """Return a function from logits to the cross entropy of each target [M] int64, in nats."""

    def losses_of(logits: Tensor, here: slice) -> Tensor:
        return F.cross_entropy(in_float32(logits), targets[here], reduction="none")

    return losses_of


def losses_at_once(logits: Tensor) -> Weighted:
    """Return the weighted sum of losses from all logits [M, V] at once."""

    def weighted(weights: Tensor, losses_of: LossesOf) -> tuple[Tensor, Tensor]:
        losses = losses_of(logits, slice(0, len(logits)))
        return (losses * weights).sum(), losses

    return weighted


def total_variations(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return TV(p, q) = ½ Σ |p - q| of each row, in 0..1: [m] from logits [m, V] of the model's q and the teacher's p,
    through which no gradient goes. That of the model's logits is q (s - Σ q s), with s = ½ sign(q - p)."""
    ours, theirs = (in_float32(each).softmax(dim=-1) for each in (logits, teacher_logits.detach()))
    return (ours - theirs).abs().sum(dim=-1) / 2


def logits_of_hidden(hidden: Tensor, head: Head) -> LogitsOf:
    """Return a teacher's logits from its hidden states [M, D], computed when they are asked for."""

    def logits_of(here: slice) -> Tensor:
        with torch.no_grad():
            return head(hidden[here])

    return logits_of


@dataclass(frozen=True)
class SBDLoss:
    """Hold eq. 14 over some targets.

    Attributes:
        total: the loss to minimise: both terms, each target times its weight.
        ntp_sum, matp_sum: the terms for the log: sums over their targets, each of weight 1. In nats; total variations have no
            unit.
        ntp_count, matp_count: how many targets each has.
    """

    total: Tensor
    ntp_sum: Tensor
    matp_sum: Tensor
    ntp_count: int
    matp_count: int


@dataclass(frozen=True)
class Objective:
    """Define what is learned at M outputs of a pass: M1 next tokens, then M2 masked ones.

    Attributes:
        ntp_targets, matp_targets: [M1] and [M2] token ids.
        ntp_weight: the weight of a next token.
        matp_weight: the weight of a masked token.
    """

    ntp_targets: Tensor
    matp_targets: Tensor
    ntp_weight: float = 1.0
    matp_weight: float = 1.0

    def loss(self, weighted: Weighted, teacher: LogitsOf | None = None) -> SBDLoss:
        """Return the loss.

        Args:
            weighted: sums the losses of all outputs by their weights. It has their logits, or makes them chunk by chunk.
            teacher: gives the clean half's logits of the masked tokens, if their loss is the total variation.
        """
        split, targets = len(self.ntp_targets), torch.cat([self.ntp_targets, self.matp_targets])
        weights = torch.full((len(targets),), self.ntp_weight, device=targets.device)
        weights[split:] = self.matp_weight
        total, losses = weighted(weights, cross_entropies(targets) if teacher is None else self._losses_of(teacher))
        ntp_sum, matp_sum = losses[:split].sum(), losses[split:].sum()
        return SBDLoss(total, ntp_sum, matp_sum, split, len(self.matp_targets))

    def _losses_of(self, teacher: LogitsOf) -> LossesOf:
        """Return a function that gives cross entropies of next tokens, and total variations of masked ones."""
        split = len(self.ntp_targets)

        def losses_of(logits: Tensor, here: slice) -> Tensor:
            targets = self.ntp_targets[here]  # none where the slice begins at a masked token
            masked = slice(max(0, here.start - split), max(0, here.start + len(logits) - split))
            of_next = cross_entropies(targets)(logits[: len(targets)], slice(None))
            return torch.cat([of_next, total_variations(logits[len(targets) :], teacher(masked))])

        return losses_of


def chunked_loss(
    hidden: Tensor, weights: Tensor, losses_of: LossesOf, *, head: Head, parameters: Sequence[Tensor], chunk: int
) -> tuple[Tensor, Tensor]:
    """Return the weighted sum of the losses of a head's logits, and each loss.

    Losses are weighted here, and not by the caller, because the gradients are computed here.

    Args:
        hidden: [M, D].
        weights: [M] float32.
        losses_of: see `LossesOf`.
        head: from hidden states [m, D] to logits [m, V].
        parameters: the head's trained weights.
        chunk: the number of hidden states whose logits exist at once, at least 1.

    Returns:
        The sum, a scalar, and the losses [M], through which no gradient goes; both in float32 at least.
    """
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
        # Many chunks add up in each of these: more digits than half precision has.
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
