"""The entropy-bounded (EB) sampler (eq. 8 and 18; Ben-Hamu et al., arXiv 2505.24857)."""

import math
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

import torch
import torch.nn.functional as F

from setblock.decoding.samplers.base import BlockView, Dial, Selection
from setblock.decoding.settings.setting import check_range
from setblock.errors import check_one_of

Proxy = Literal["entropy", "confidence", "margin"]
PAPER_GAMMAS = (0.0, 0.01, 0.1, 0.2, 0.4, 0.8, 1.5)  # section 3 of the paper


@dataclass(frozen=True)
class EntropyBounded:
    """Reveal the s positions of the smallest error proxy, s the largest with H_1 + ... + H_s - max(H_1, ..., H_s) <= gamma.

    H is the entropy whatever the proxy. With the entropy as proxy this is eq. 8: H_1 + ... + H_(s-1) <= gamma. Then gamma = 0
    reveals one position a pass (more only where entropies are exactly 0), and gamma = inf the whole block. The left side bounds
    the mutual information of the tokens that are revealed together.

    Attributes:
        gamma: the right side, in nats, at least 0.
        proxy: what positions are sorted by: ascending entropy, descending confidence or descending margin.
    """

    name: ClassVar[str] = "entropy-bounded"
    dial: ClassVar[Dial] = Dial("gamma", PAPER_GAMMAS)

    gamma: float = 0.1
    proxy: Proxy = "entropy"

    def __post_init__(self) -> None:
        check_range("gamma", self.gamma, 0)
        check_one_of("proxy", self.proxy, get_args(Proxy))

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        error = block.entropy if self.proxy == "entropy" else -getattr(block, self.proxy)  # [B, k]
        ascending, order = error.where(block.candidates, math.inf).sort(dim=-1, stable=True)  # [B, k]
        if self.proxy == "entropy":
            within = F.pad(ascending.cumsum(dim=-1), (1, -1)) <= self.gamma  # without its last term, the largest
        else:
            entropy = block.entropy.gather(-1, order)
            within = entropy.cumsum(dim=-1) - entropy.cummax(dim=-1).values <= self.gamma
            within = within.cumprod(dim=-1).bool()  # a prefix, whatever rounding does to the difference of two sums
        return Selection(torch.empty_like(within).scatter_(-1, order, within) & block.candidates)
