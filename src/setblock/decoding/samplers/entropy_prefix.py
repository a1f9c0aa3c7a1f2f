"""A bound on the total entropy of the leading positions, so that a block never has a gap."""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers.base import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class EntropyPrefix:
    """Reveal the longest prefix of the masked positions with H_1 + ... + H_s <= gamma, at least the leftmost.

    Source: none; the entropy bound of `EntropyBounded` with two changes. Positions are taken from left to right, so
    nothing is revealed after a gap. The sum counts its largest entropy, so an uncertain position is revealed only if
    it is the leftmost.

    Attributes:
        gamma: the entropy bound, in nats, at least 0.
    """

    name: ClassVar[str] = "entropy-prefix"
    dial: ClassVar[Dial] = Dial("gamma", (0.01, 0.02, 0.05, 0.1, 0.2, 0.4, 0.8))

    gamma: float = 0.1

    def __post_init__(self) -> None:
        check_range("gamma", self.gamma, 0)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        entropy = block.entropy.where(block.candidates, 0)  # [B, k]
        column = torch.arange(entropy.shape[-1], device=entropy.device).expand_as(entropy)
        return Selection(at_least_one(entropy.cumsum(dim=-1) <= self.gamma, block, score=-column.float()))
