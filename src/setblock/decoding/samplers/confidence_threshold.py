"""A bound on each position's confidence (Fast-dLLM, section 3.3; Wu et al., arXiv 2505.22618)."""

from dataclasses import dataclass
from typing import ClassVar

from setblock.decoding.samplers.base import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class ConfidenceThreshold:
    """Reveal every position with c_i >= threshold; where there is none, the most confident.

    c_i is the probability of the most likely token. Source: Fast-dLLM (arXiv 2505.22618), whose default is 0.9.

    Attributes:
        threshold: a probability.
    """

    name: ClassVar[str] = "confidence-threshold"
    dial: ClassVar[Dial] = Dial("threshold", (0.999, 0.99, 0.97, 0.95, 0.9, 0.8, 0.7))

    threshold: float = 0.9

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        return Selection(at_least_one(block.confidence >= self.threshold, block, score=block.confidence))
