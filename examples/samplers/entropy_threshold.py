"""Implement a bound on each position's entropy.

setblock generate --method sbd --sampler examples/samplers/entropy_threshold.py:EntropyThreshold "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

from setblock.decoding.samplers import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class EntropyThreshold:
    """Reveal every position with H_i <= threshold; where there is none, the one of the least entropy.

    Source: the rule that the entropy-bounded sampler is often taken for. It bounds each position's entropy and not their sum,
    so what is revealed together may depend on each other ever more, the more there is of it.

    Attributes:
        threshold: nats, at least 0.
    """

    name: ClassVar[str] = "entropy-threshold"
    dial: ClassVar[Dial] = Dial("threshold", (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0))

    threshold: float = 0.1

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        return Selection(at_least_one(block.entropy <= self.threshold, block, score=-block.entropy))
