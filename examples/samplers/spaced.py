"""Make the entropy-bounded choice without neighbours (the filter of DUS, section 4.4; Luxembourg et al., arXiv
2506.19037).

    setblock generate --method sbd --sampler examples/samplers/spaced.py:Spaced "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers import BlockView, Dial, EntropyBounded, Selection
from setblock.decoding.samplers.entropy_bounded import PAPER_GAMMAS
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class Spaced:
    """Reveal of `EntropyBounded(gamma)`'s choice positions at least `gap` apart, those of less entropy first.

    A position too near to one that was taken before it waits for a later pass, in which it sees that one's token.

    Source: the filter that DUS (arXiv 2506.19037, section 4.4) puts behind adaptive samplers. There the gap begins wider and
    shrinks to 2 as the block fills up, in proportion to its size; a rule here doesn't see its row's block size, so the gap
    stays the same. The paper counts entropy in bits.

    Attributes:
        gamma: the entropy bound, in nats, at least 0.
        gap: in tokens, at least 1: at 2 no two neighbours are revealed together, at 1 nothing is filtered.
    """

    name: ClassVar[str] = "spaced"
    dial: ClassVar[Dial] = Dial("gamma", PAPER_GAMMAS)

    gamma: float = 0.35
    gap: int = 2

    def __post_init__(self) -> None:
        check_range("gamma", self.gamma, 0)
        check_range("gap", self.gap, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        wanted = EntropyBounded(self.gamma).select(block).reveal
        column = torch.arange(wanted.shape[-1], device=wanted.device)
        is_near = (column[:, None] - column).abs() < self.gap  # [k, k]
        reveal = torch.zeros_like(wanted)
        for at in block.entropy.argsort(dim=-1, stable=True).unbind(dim=-1):  # each row's next position, [B]
            near = is_near[at]  # [B, k]
            is_free = ~(near & reveal).any(dim=-1, keepdim=True)
            reveal |= wanted & is_free & (column == at[:, None])
        return Selection(reveal)
