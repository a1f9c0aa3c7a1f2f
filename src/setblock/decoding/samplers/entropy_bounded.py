"""The entropy-bounded (EB) sampler (eq. 8; Ben-Hamu et al., arXiv 2505.24857)."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from setblock.decoding.samplers.protocol import Selection
from setblock.errors import SetBlockError


@dataclass(frozen=True)
class EntropyBounded:
    """Reveal the s most certain positions, s the largest with H_1 + ... + H_{s-1} <= gamma, entropies ascending.

    The sum leaves the last revealed position out, so gamma = 0 reveals one position a pass (more only where entropies are
    exactly 0) and gamma = inf the whole block. It bounds the mutual information of what is revealed together.

    Attributes:
        gamma: the entropy bound, in nats, at least 0.
    """

    gamma: float = 0.1

    def __post_init__(self) -> None:
        if not self.gamma >= 0 or math.isnan(self.gamma):
            raise SetBlockError(f"gamma must be at least 0, not {self.gamma}")

    def select(self, logits: Tensor, candidates: Tensor) -> Selection:
        """See `setblock.decoding.samplers.protocol.Sampler`."""
        log_probs = logits.log_softmax(dim=-1)  # [B, k, V]
        # A banned token's log-probability is -inf; its term p log p is 0.
        entropy = torch.special.entr(log_probs.exp()).sum(dim=-1)  # [B, k]
        # Logits that are not numbers say nothing; they must still not keep a block from ever being whole.
        entropy = entropy.nan_to_num(nan=math.log(logits.shape[-1]))
        ordered, order = entropy.masked_fill(~candidates, math.inf).sort(dim=-1, stable=True)  # [B, k]
        before = F.pad(ordered.cumsum(dim=-1), (1, -1))  # sum over the more certain ones, 0 for the first
        within = (before <= self.gamma) & ordered.isfinite()
        reveal = torch.zeros_like(candidates).scatter(-1, order, within)
        return Selection(reveal=reveal & candidates, entropy=entropy)
