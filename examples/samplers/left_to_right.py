"""Reveal in the order of next-token decoding.

setblock generate --method sbd --sampler examples/samplers/left_to_right.py:LeftToRight "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

from setblock.decoding.samplers import BlockView, Dial, Selection
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class LeftToRight:
    """Reveal the `count` leftmost positions, or all that there are.

    With a count of 1 it takes as many passes as next-token decoding, but is not the same: a masked position also sees the
    masks after it. For next-token decoding there is method `ntp`.

    Attributes:
        count: at least 1.
    """

    name: ClassVar[str] = "left-to-right"
    dial: ClassVar[Dial] = Dial("count", (1, 2, 3, 4, 6, 8, 16))

    count: int = 1

    def __post_init__(self) -> None:
        check_range("count", self.count, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        return Selection(block.candidates & (block.candidates.cumsum(dim=-1) <= self.count))
