"""Rank positions by entropy plus a penalty for their distance to the right (WeDLM; Liu et al., arXiv 2512.22737).

setblock generate --method sbd --sampler examples/samplers/distance_penalty.py:DistancePenalty "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class DistancePenalty:
    """Reveal every position with H_i + penalty d_i <= threshold; where there is none, the one where that is the least.

    d_i is the distance, in tokens, from the leftmost candidate. The penalty makes the order more nearly left to right, so that
    a prefix is complete sooner. Source: WeDLM (arXiv 2512.22737), whose bound is strict. What its paper takes for the two
    parameters could not be checked; these defaults are those of reimplementations.

    Attributes:
        threshold: nats, at least 0.
        penalty: nats a token, at least 0.
    """

    name: ClassVar[str] = "distance-penalty"
    dial: ClassVar[Dial] = Dial("threshold", (0.05, 0.1, 0.2, 0.4, 0.8))

    threshold: float = 0.4
    penalty: float = 0.02

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0)
        check_range("penalty", self.penalty, 0)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        column = torch.arange(block.candidates.shape[-1], device=block.candidates.device)
        leftmost = block.candidates.long().argmax(dim=-1, keepdim=True)  # [B, 1]
        distance = (column - leftmost).clamp(min=0)  # [B, k]
        penalised = block.entropy + self.penalty * distance
        return Selection(at_least_one(penalised <= self.threshold, block, score=-penalised))
