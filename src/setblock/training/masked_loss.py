"""Compare the model's distribution at masked tokens with the clean half's: total variation, KL divergence, or both.

Knows logits. Knows nothing of models, or of which output predicts what.

A masked token at position t stands where a next-token model that has read all before t says what comes there. The clean half of
the same pass is that model, and so the teacher: method `exact` checks drafts against its distribution. With a clean
distribution p and the block's own q, sampling accepts a draft with probability Σ min(p, q) = 1 - TV(p, q) (arXiv 2211.17192).
"""

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor

from setblock.training.cross_entropy import Head, in_float32

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


def _with_kl(logits: Tensor, teacher_logits: Tensor) -> Tensor:
    return total_variations(logits, teacher_logits) + KL_SHARE * kl_divergences(logits, teacher_logits)


DISTANCES: dict[MaskedLoss, Callable[[Tensor, Tensor], Tensor]] = {
    "kl": kl_divergences,
    "total_variation": total_variations,
    "total_variation_kl": _with_kl,
}
"""The masked-token losses that have a teacher."""


def logits_of_hidden(hidden: Tensor, head: Head) -> LogitsOf:
    """Return a teacher's logits from its hidden states [M, D], computed when they are asked for."""

    def logits_of(here: slice) -> Tensor:
        with torch.no_grad():
            return head(hidden[here])

    return logits_of
