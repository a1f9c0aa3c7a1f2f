"""A bound on each position's confidence (Fast-dLLM, section 3.3; Wu et al., arXiv 2505.22618)."""

from dataclasses import dataclass

from setblock.decoding.samplers.protocol import BlockView, Selection, at_least_one
from setblock.decoding.samplers.ranges import check_range


@dataclass(frozen=True)
class ConfidenceThreshold:
    """Reveal every position with c_i >= threshold; where there is none, the most confident.

    c_i is the probability of the most likely token. Source: Fast-dLLM (arXiv 2505.22618), whose default is 0.9.

    Attributes:
        threshold: a probability.
    """

    threshold: float = 0.9

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.protocol.Sampler`."""
        return Selection(at_least_one(block.confidence >= self.threshold, block, score=block.confidence))
