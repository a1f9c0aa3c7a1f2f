"""A fixed number of tokens in each pass (LLaDA; Nie et al., arXiv 2502.09992)."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers.base import BlockView, Dial, Selection
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class FixedCount:
    """Reveal the `count` most confident positions, or all if there are fewer.

    Source: LLaDA's low-confidence remasking (arXiv 2502.09992), which takes the number of steps; the count is the
    tokens of a block over its steps.

    Attributes:
        count: at least 1.
    """

    name: ClassVar[str] = "fixed-count"
    dial: ClassVar[Dial] = Dial("count", (1, 2, 3, 4, 6, 8, 16))

    count: int = 2

    def __post_init__(self) -> None:
        check_range("count", self.count, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        confidence = block.confidence.where(block.candidates, -torch.inf)
        rank = confidence.argsort(dim=-1, descending=True, stable=True).argsort(dim=-1)  # [B, k]
        return Selection((rank < self.count) & block.candidates)
