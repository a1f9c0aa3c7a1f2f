"""The SBD loss: next-token plus masked-token prediction (eq. 14).

Knows logits, or hidden states and a head, and targets. Knows nothing of how they came to be.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from setblock.training.cross_entropy import Head, chunked_cross_entropy, in_float32, liger_cross_entropy


@dataclass(frozen=True)
class SBDLoss:
    """Eq. 14 over some targets, in nats.

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

    def with_distillation(self, weighted: Tensor, divergences: Tensor) -> "SBDLoss":
        """The same with the third term: its weighted sum, to be learned from, and its parts [M], to be looked at."""
        return replace(
            self,
            total=self.total + weighted,
            distillation_sum=divergences.detach().sum(),
            distillation_count=len(divergences),
        )


def sbd_loss(
    logits: Tensor, *, ntp_targets: Tensor, matp_targets: Tensor, ntp_weight: float = 1.0, matp_weight: float = 1.0
) -> SBDLoss:
    """Eq. 14 from logits, in float32 at least.

    Args:
        logits: [M, V], the NTP targets' outputs first, then the MATP targets'.
        ntp_targets: [M1] token ids.
        matp_targets: [M2] token ids, M1 + M2 = M.
    """
    ntp_logits, matp_logits = in_float32(logits[: len(ntp_targets)]), in_float32(logits[len(ntp_targets) :])
    ntp_sum = F.cross_entropy(ntp_logits, ntp_targets, reduction="sum")
    matp_sum = F.cross_entropy(matp_logits, matp_targets, reduction="sum")
    return SBDLoss(
        total=ntp_weight * ntp_sum + matp_weight * matp_sum,
        ntp_sum=ntp_sum,
        matp_sum=matp_sum,
        ntp_count=len(ntp_targets),
        matp_count=len(matp_targets),
    )


def sbd_loss_in_chunks(
    hidden: Tensor,
    *,
    head: Head,
    parameters: Sequence[Tensor],
    chunk: int,
    ntp_targets: Tensor,
    matp_targets: Tensor,
    ntp_weight: float = 1.0,
    matp_weight: float = 1.0,
) -> SBDLoss:
    """`sbd_loss` from hidden states [M, D] in place of logits, with the logits of `chunk` targets at a time.

    Args:
        hidden: in the order of `sbd_loss`'s logits.
        head, parameters: see `setblock.training.cross_entropy.chunked_cross_entropy`.
    """
    split = len(ntp_targets)
    weights = torch.full((len(hidden),), ntp_weight, device=hidden.device)
    weights[split:] = matp_weight
    targets = torch.cat([ntp_targets, matp_targets])
    total, losses = chunked_cross_entropy(hidden, targets, weights, head=head, parameters=parameters, chunk=chunk)
    return SBDLoss(
        total=total,
        ntp_sum=losses[:split].sum(),
        matp_sum=losses[split:].sum(),
        ntp_count=split,
        matp_count=len(matp_targets),
    )


def sbd_loss_by_liger(
    hidden: Tensor,
    *,
    head: nn.Linear,
    ntp_targets: Tensor,
    matp_targets: Tensor,
    ntp_weight: float = 1.0,
    matp_weight: float = 1.0,
) -> SBDLoss:
    """`sbd_loss_in_chunks` by Liger's kernel, of a head that is one linear layer."""
    split = len(ntp_targets)
    sums = [
        liger_cross_entropy(part, targets, weight=head.weight, bias=head.bias)
        for part, targets in ((hidden[:split], ntp_targets), (hidden[split:], matp_targets))
    ]
    return SBDLoss(
        total=ntp_weight * sums[0] + matp_weight * sums[1],
        ntp_sum=sums[0],
        matp_sum=sums[1],
        ntp_count=split,
        matp_count=len(matp_targets),
    )
