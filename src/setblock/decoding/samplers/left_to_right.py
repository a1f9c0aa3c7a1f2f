"""The order of next-token decoding."""

from dataclasses import dataclass

from setblock.decoding.samplers.protocol import BlockView, Selection
from setblock.decoding.samplers.ranges import check_range


@dataclass(frozen=True)
class LeftToRight:
    """Reveal the `count` leftmost positions, or all that there are.

    With a count of 1 it takes as many passes as next-token decoding, but is not the same: a masked position also sees the
    masks after it. For next-token decoding there is method `ntp`.

    Attributes:
        count: at least 1.
    """

    count: int = 1

    def __post_init__(self) -> None:
        check_range("count", self.count, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.protocol.Sampler`."""
        return Selection(block.candidates & (block.candidates.cumsum(dim=-1) <= self.count))
