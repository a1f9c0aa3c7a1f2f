"""Compute the SBD loss: the next-token (NTP) plus the masked-token (MATP) term (eq. 14). `forward` finds the outputs of a batch
that have a target, and `cross_entropy` sums over them.

Knows logits, or hidden states and a head, and targets. Knows nothing of models, or of how targets are chosen.

The loss at a masked token is its cross entropy, or a distance from the clean half's distribution: total variation, KL
divergence, or both. The clean half of the same pass is then the teacher: it has read all tokens before the masked one, and
predicts it as a next token. Method `exact` checks drafts against this distribution.
With a clean distribution p and the block's own q, sampling accepts a draft with probability Σ min(p, q) = 1 - TV(p, q) (arXiv
2211.17192).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from setblock.training.loss.cross_entropy import Head, LossesOf, Weighted, cross_entropies, in_float32

MaskedLoss = Literal["cross_entropy", "kl", "total_variation", "total_variation_kl"]

KL_SHARE = 0.01
"""The weight of the KL divergence in `total_variation_kl`. UNO (arXiv 2609.04010) has this sum."""

LogitsOf = Callable[[slice], Tensor]
"""The teacher's logits [m, V] for a slice of the masked tokens that are learned."""


def kl_divergences(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return KL(p ‖ q) = Σ p ln(p / q) of each row, in nats: [m] from logits [m, V] of the model's q and the teacher's
    p, through which no gradient goes."""
    ours, theirs = (in_float32(each).log_softmax(dim=-1) for each in (logits, teacher_logits.detach()))
    return (theirs.exp() * (theirs - ours)).sum(dim=-1)


def total_variations(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    """Return TV(p, q) = ½ Σ |p - q| of each row, in 0..1: [m] from logits [m, V] of the model's q and the teacher's p,
    through which no gradient goes. That of the model's logits is q (s - Σ q s), with s = ½ sign(q - p)."""
    ours, theirs = (in_float32(each).softmax(dim=-1) for each in (logits, teacher_logits.detach()))
    return (ours - theirs).abs().sum(dim=-1) / 2


DISTANCES: dict[MaskedLoss, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl_divergences,
    "total_variation": total_variations,
    "total_variation_kl": lambda *both: total_variations(*both) + KL_SHARE * kl_divergences(*both),
}
"""The masked-token losses that have a teacher."""


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
        matp_weight: the weight of each masked token, or one for all.
        masked_loss: the loss of masked tokens; all but `cross_entropy` have a teacher.
    """

    ntp_targets: Tensor
    matp_targets: Tensor
    ntp_weight: float = 1.0
    matp_weight: float | Tensor = 1.0
    masked_loss: MaskedLoss = "cross_entropy"

    def loss(self, weighted: Weighted, teacher: LogitsOf | None = None) -> SBDLoss:
        """Return the loss.

        Args:
            weighted: sums the losses of all outputs by their weights. It has their logits, or makes them chunk by chunk.
            teacher: gives the clean half's logits of the masked tokens, where their loss has a teacher.
        """
        split, targets = len(self.ntp_targets), torch.cat([self.ntp_targets, self.matp_targets])
        weights = torch.full((len(targets),), self.ntp_weight, device=targets.device)
        weights[split:] = self.matp_weight
        total, losses = weighted(weights, cross_entropies(targets) if teacher is None else self._losses_of(teacher))
        ntp_sum, matp_sum = losses[:split].sum(), losses[split:].sum()
        return SBDLoss(total, ntp_sum, matp_sum, split, len(self.matp_targets))

    def _losses_of(self, teacher: LogitsOf) -> LossesOf:
        """Return a function that gives cross entropies of next tokens, and distances from a teacher of masked ones."""
        split, distances = len(self.ntp_targets), DISTANCES[self.masked_loss]

        def losses_of(logits: Tensor, here: slice) -> Tensor:
            targets = self.ntp_targets[here]  # none where the slice begins at a masked token
            masked = slice(max(0, here.start - split), max(0, here.start + len(logits) - split))
            of_next = cross_entropies(targets)(logits[: len(targets)], slice(None))
            return torch.cat([of_next, distances(logits[len(targets) :], teacher(masked))])

        return losses_of
