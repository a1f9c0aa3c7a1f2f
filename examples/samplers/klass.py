"""Implement KLASS: reveal tokens that are confident and no longer change (Kim et al., arXiv 2511.05664).

setblock generate --method sbd --sampler examples/samplers/klass.py:Klass "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from setblock.decoding.samplers import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class Klass:
    """Reveal every position with c_i >= threshold whose distribution has been stable for the last `passes` passes.

    Stable in a pass: KL(p_i now || p_i in the pass before) <= max_kl. A pass in which the position was no candidate, and so
    had no distribution, breaks the run. Where no position qualifies, the most confident is revealed. So the first `passes`
    passes of a block reveal one token each.

    Source: KLASS (arXiv 2511.05664) and its code, whose defaults these are; they tune them to each benchmark (0.6 and 0.015 on
    GSM8K). Its bounds are strict, and where nothing qualifies it falls back to a fixed number of positions, here one.

    Attributes:
        threshold: a probability.
        max_kl: nats, at least 0.
        passes: for how many passes in a row, at least 1.
    """

    name: ClassVar[str] = "klass"
    dial: ClassVar[Dial] = Dial("threshold", (0.99, 0.95, 0.9, 0.8, 0.7))

    threshold: float = 0.9
    max_kl: float = 0.01
    passes: int = 2

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0, 1)
        check_range("max_kl", self.max_kl, 0)
        check_range("passes", self.passes, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        before = block.memory.get("probs", torch.zeros_like(block.probs))  # [B, k, V], all 0 where there is none
        run = block.memory.get("run", torch.zeros_like(block.candidates, dtype=torch.long))  # [B, k]
        is_stable = (before > 0).any(dim=-1) & (_divergence(block.probs, before) <= self.max_kl)
        run = (run + 1) * (is_stable & block.candidates)
        reveal = (block.confidence >= self.threshold) & (run >= self.passes)
        return Selection(
            at_least_one(reveal, block, score=block.confidence),
            memory={"probs": torch.where(block.candidates[..., None], block.probs, 0), "run": run},
        )


def _divergence(now: Tensor, before: Tensor) -> Tensor:
    """Return KL(now || before) [B, k] in nats; large but finite where a token is possible now and was not before."""
    least = torch.finfo(now.dtype).tiny
    return (now * (now.clamp(min=least).log() - before.clamp(min=least).log())).sum(dim=-1)
