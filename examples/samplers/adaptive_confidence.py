"""Implement bounded adaptive confidence (BACD of TDAR; Lu et al., arXiv 2602.09555).

setblock generate --method sbd --sampler examples/samplers/adaptive_confidence.py:AdaptiveConfidence "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class AdaptiveConfidence:
    """Reveal every position with c_i >= t, t following how confident the block has been so far; at least the most confident.

    t is the mean confidence that the block's tokens had when this rule revealed them, but at least `lower` and at most
    `upper`. In a block's first pass it is the largest confidence there is, within the same bounds. So where the model is sure
    the rule asks for much, and where it is not it doesn't wait in vain.

    Source: bounded adaptive confidence decoding (arXiv 2602.09555), with the bounds of its code.

    Attributes:
        lower: a probability.
        upper: a probability, at least `lower`.
    """

    name: ClassVar[str] = "adaptive-confidence"
    dial: ClassVar[Dial] = Dial("lower", (0.9, 0.8, 0.7, 0.6, 0.5))

    lower: float = 0.6
    upper: float = 0.9

    def __post_init__(self) -> None:
        check_range("upper", self.upper, 0, 1)
        check_range("lower", self.lower, 0, self.upper)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        past = block.memory.get(
            "confidence", torch.zeros_like(block.confidence)
        )  # [B, k], 0 where nothing was revealed
        count = (past > 0).sum(dim=-1, keepdim=True)  # [B, 1]
        most = torch.where(block.candidates, block.confidence, 0).amax(dim=-1, keepdim=True)
        threshold = torch.where(count > 0, past.sum(dim=-1, keepdim=True) / count.clamp(min=1), most)
        confident = block.confidence >= threshold.clamp(self.lower, self.upper)
        reveal = at_least_one(confident, block, score=block.confidence)
        return Selection(reveal, memory={"confidence": torch.where(reveal, block.confidence, past)})
