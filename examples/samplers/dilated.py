"""Implement the dilated unmasking schedule (DUS; Luxembourg et al., arXiv 2506.19037).

setblock generate --method sbd --sampler examples/samplers/dilated.py:Dilated "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers import BlockView, Dial, Selection
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class Dilated:
    """Reveal every `stride`-th position of the block, then every half of that, and so on down to the ones in between.

    The order is fixed beforehand: tokens that stand apart depend less on each other than neighbours. Looking at no logits, it
    takes the same number of passes in every block: 4 for 16 positions at a stride of 8.

    Source: DUS (arXiv 2506.19037), with its base of 2. There the first stride is half the block; a rule here doesn't see its
    row's block size, so it is a parameter, and half the default of 16. Its code puts back tokens of a confidence below 0.3;
    here a revealed token stays. Where a group's positions are all revealed or beyond the answer, the next group is taken.

    Attributes:
        stride: the first distance, at least 1; at 1 everything is revealed.
    """

    name: ClassVar[str] = "dilated"
    dial: ClassVar[Dial] = Dial("stride", (16, 8, 4, 2))

    stride: int = 8

    def __post_init__(self) -> None:
        check_range("stride", self.stride, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        strides = [self.stride]
        while strides[-1] > 1:
            strides.append(strides[-1] // 2)
        column = torch.arange(block.candidates.shape[-1], device=block.candidates.device)
        group = (
            torch.stack([column % stride == 0 for stride in strides]).long().argmax(dim=0)
        )  # [k]: the first that has it
        turn = torch.where(block.candidates, group, len(strides)).amin(dim=-1, keepdim=True)  # [B, 1]
        return Selection(block.candidates & (group == turn))
