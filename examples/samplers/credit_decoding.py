"""Implement CreditDecoding, where past predictions count (Wang et al., arXiv 2510.06133).

setblock generate --method sbd --sampler examples/samplers/credit_decoding.py:CreditDecoding "PROMPT"
"""

from dataclasses import dataclass
from typing import ClassVar

import torch

from setblock.decoding.samplers import BlockView, Dial, Selection, at_least_one
from setblock.decoding.settings.setting import check_range


@dataclass(frozen=True)
class CreditDecoding:
    """Reveal every position with a confidence >= threshold, after adding to each token's logit what it earned in past passes.

    In each pass all credit is multiplied by `decay`, and each masked position's most likely token v earns p(v)^power. The
    logits become z + strength log(1 + credit), and tokens are chosen from these. So a token that has long been the most
    likely, if never by much, is revealed sooner. Where no position qualifies, the most confident is revealed.

    Source: CreditDecoding (arXiv 2510.06133), with the defaults of its authors' engine, dInfer. It remembers a number for each
    token of the vocabulary at each position.

    Attributes:
        threshold: a probability.
        strength: of the credit, at least 0; at 0 the rule is `ConfidenceThreshold`.
        decay: between 0 and 1; at 0 only the pass itself counts.
        power: between 0 and 1; the lower, the less it matters how likely the most likely token was.
    """

    name: ClassVar[str] = "credit-decoding"
    dial: ClassVar[Dial] = Dial("threshold", (0.99, 0.97, 0.95, 0.9, 0.8))

    threshold: float = 0.9
    strength: float = 0.7
    decay: float = 0.8
    power: float = 0.2

    def __post_init__(self) -> None:
        check_range("threshold", self.threshold, 0, 1)
        check_range("strength", self.strength, 0)
        check_range("decay", self.decay, 0, 1)
        check_range("power", self.power, 0, 1)

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.Sampler`."""
        credit = block.memory.get("credit", torch.zeros_like(block.logits)) * self.decay  # [B, k, V]
        earned = torch.where(block.candidates, block.confidence**self.power, 0)  # [B, k]
        credit = credit.scatter_add(-1, block.logits.argmax(dim=-1, keepdim=True), earned[..., None])
        logits = block.logits + self.strength * credit.log1p()
        confidence = logits.log_softmax(dim=-1).amax(dim=-1).exp()
        reveal = at_least_one(confidence >= self.threshold, block, score=confidence)
        return Selection(reveal, logits=logits, memory={"credit": credit})
