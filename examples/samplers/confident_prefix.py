"""Reveal from left to right as far as the model is confident, since a draft is kept up to its first error.

setblock generate --method sbd --sampler examples/samplers/confident_prefix.py:ConfidentPrefix "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class ConfidentPrefix:
    """Reveal from the left as long as c_i >= threshold; the first position that falls short, and all after it, stay masked.

    At least the leftmost. What is revealed never leaves a gap, so in method `exact` all of it can be checked at once.
    Source: none; the leading run of `ConfidenceThreshold`.

    Attributes:
        threshold: a probability; at 0 everything is revealed.
    """

    name: ClassVar[str] = "confident-prefix"
    dial: ClassVar[Dial] = Dial("threshold", (0.999, 0.99, 0.97, 0.95, 0.9, 0.8, 0.7))

    threshold: float = 0.5

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        confident = (block.confidence >= self.threshold) | ~block.candidates
        column = torch.arange(confident.shape[-1], device=confident.device).expand_as(confident)
        return Selection(at_least_one(confident.cumprod(dim=-1).bool(), block, score=-column.float()))
