"""The SBD loss: next-token plus masked-token prediction (eq. 14).

Knows logits and targets. Knows nothing of how either came to be.
"""

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class SBDLoss:
    """The two terms of eq. 14 as sums over their targets, and how many targets each has."""

    ntp_sum: Tensor
    matp_sum: Tensor
    ntp_count: int
    matp_count: int


def sbd_loss(logits: Tensor, *, ntp_targets: Tensor, matp_targets: Tensor) -> SBDLoss:
    """Both sums of eq. 14, in float32 and nats.

    Args:
        logits: [M, V], the NTP targets' outputs first, then the MATP targets'.
        ntp_targets: [M1] token ids.
        matp_targets: [M2] token ids, M1 + M2 = M.
    """
    ntp_logits, matp_logits = logits[: len(ntp_targets)].float(), logits[len(ntp_targets) :].float()
    return SBDLoss(
        ntp_sum=F.cross_entropy(ntp_logits, ntp_targets, reduction="sum"),
        matp_sum=F.cross_entropy(matp_logits, matp_targets, reduction="sum"),
        ntp_count=len(ntp_targets),
        matp_count=len(matp_targets),
    )
