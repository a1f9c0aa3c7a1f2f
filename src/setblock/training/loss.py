"""Compute the SBD loss: next-token plus masked-token prediction (eq. 14), and distillation as a third term.

Knows logits, or hidden states and a head, and targets. Knows nothing of how they came to be.
"""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from setblock.training.cross_entropy import Weighted, cross_entropies, liger_cross_entropy
from setblock.training.distillation import LogitsOf, divergences


@dataclass(frozen=True)
class SBDLoss:
    """Hold eq. 14 over some targets, in nats.

    Attributes:
        total: what is learned from: the sums, each times its weight.
        ntp_sum, matp_sum: the terms as sums over their targets, to be looked at.
        ntp_count, matp_count: how many targets each has.
        distillation_sum, distillation_count: of the divergences from a teacher, where there is one.
    """

    total: Tensor
    ntp_sum: Tensor
    matp_sum: Tensor
    ntp_count: int
    matp_count: int
    distillation_sum: Tensor | float = 0.0
    distillation_count: int = 0


@dataclass(frozen=True)
class Objective:
    """Define what is learned at M outputs of a pass: M1 next tokens, then M2 masked ones.

    Attributes:
        ntp_targets, matp_targets: [M1] and [M2] token ids.
        ntp_weight, matp_weight: of each of them.
        taught: [M3] which of the masked tokens have a teacher, by number; None without distillation.
        taught_weight: of each of those.
    """

    ntp_targets: Tensor
    matp_targets: Tensor
    ntp_weight: float = 1.0
    matp_weight: float = 1.0
    taught: Tensor | None = None
    taught_weight: float = 0.0

    def loss(self, weighted: Weighted, teacher: LogitsOf | None = None) -> SBDLoss:
        """Return the loss, by whichever way there is to the outputs' logits.

        Args:
            weighted: gives weighted sums of what is computed from the logits of the outputs.
            teacher: the other logits of those that are taught.
        """
        split, targets = len(self.ntp_targets), torch.cat([self.ntp_targets, self.matp_targets])
        weights = torch.full((len(targets),), self.ntp_weight, device=targets.device)
        weights[split:] = self.matp_weight
        total, losses = weighted(torch.arange(len(targets), device=targets.device), weights, cross_entropies(targets))
        return self._with_teacher(total, losses[:split].sum(), losses[split:].sum(), weighted, teacher)

    def loss_by_liger(
        self, hidden: Tensor, head: nn.Linear, weighted: Weighted, teacher: LogitsOf | None = None
    ) -> SBDLoss:
        """Return the same, with the cross entropies by Liger's kernel, from hidden states [M, D] and a head of one
        linear layer."""
        split = len(self.ntp_targets)
        ntp_sum, matp_sum = (
            liger_cross_entropy(part, targets, weight=head.weight, bias=head.bias)
            for part, targets in ((hidden[:split], self.ntp_targets), (hidden[split:], self.matp_targets))
        )
        total = self.ntp_weight * ntp_sum + self.matp_weight * matp_sum
        return self._with_teacher(total, ntp_sum, matp_sum, weighted, teacher)

    def _with_teacher(
        self, total: Tensor, ntp_sum: Tensor, matp_sum: Tensor, weighted: Weighted, teacher: LogitsOf | None
    ) -> SBDLoss:
        divergence: Tensor | float = 0.0
        if self.taught is not None and teacher is not None:
            more, each = weighted(
                len(self.ntp_targets) + self.taught,
                torch.full((len(self.taught),), self.taught_weight, device=self.taught.device),
                lambda logits, here: divergences(logits, teacher(here)),
            )
            total, divergence = total + more, each.detach().sum()
        return SBDLoss(
            total=total,
            ntp_sum=ntp_sum,
            matp_sum=matp_sum,
            ntp_count=len(self.ntp_targets),
            matp_count=len(self.matp_targets),
            distillation_sum=divergence,
            distillation_count=0 if self.taught is None or teacher is None else len(self.taught),
        )
