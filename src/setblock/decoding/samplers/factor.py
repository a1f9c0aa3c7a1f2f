"""The factor rule (Fast-dLLM, section 3.3; Wu et al., arXiv 2505.22618)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers.base import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class Factor:
    """Reveal the n most confident positions, n the largest with (n + 1) (1 - c_n) <= factor, and at least one.

    c_n is the n-th largest confidence. Under the paper's theorem 1, at a factor of 1 choosing these tokens
    independently gives the most likely joint choice. Source: Fast-dLLM (arXiv 2505.22618), whose bound is strict, which
    only differs where the two sides are equal; its code's default is 1. The appendix of arXiv 2509.04185 prints c_n for
    1 - c_n.

    Attributes:
        factor: at least 0.
    """

    name: ClassVar[str] = "factor"
    dial: ClassVar[Dial] = Dial("factor", (0.01, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0))

    factor: float = 1.0

    def __post_init__(self) -> None:
        check_range("factor", self.factor, 0)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        confidence = block.confidence.where(block.candidates, -torch.inf)
        ordered, order = confidence.sort(dim=-1, descending=True, stable=True)  # [B, k]
        n = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
        within = (n + 1) * (1 - ordered) <= self.factor  # a prefix: both factors grow with n
        reveal = torch.zeros_like(block.candidates).scatter(-1, order, within)
        return Selection(at_least_one(reveal, block, score=confidence))
