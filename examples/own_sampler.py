"""A sampler of one's own: reveal every position that is confident enough, and at least the most confident one.

    python examples/own_sampler.py

A sampler is any object with this `select`. It sees the logits of a block and which positions are still masked, and says
which to reveal; the decoding loop does the rest. Every row of a batch that has a candidate must reveal at least one.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

import setblock
from setblock.decoding.samplers import Selection


@dataclass(frozen=True)
class ConfidenceThreshold:
    """Reveal where the most probable token has at least probability `threshold`."""

    threshold: float = 0.95

    def select(self, logits: Tensor, candidates: Tensor) -> Selection:
        """Choose among the `candidates` [B, k] by their `logits` [B, k, V]."""
        probabilities = logits.softmax(dim=-1)
        confidence = probabilities.amax(dim=-1).masked_fill(~candidates, -1.0)  # [B, k]
        best = torch.zeros_like(candidates).scatter(1, confidence.argmax(dim=1, keepdim=True), True)
        reveal = candidates & ((confidence >= self.threshold) | best)
        return Selection(reveal=reveal, entropy=torch.special.entr(probabilities).sum(dim=-1))


def main() -> None:
    """Decode one problem with it, and with the default sampler."""
    model = setblock.load()
    question = "Maya has 12 apples. Maya finds 7 more. Maya gives away 4 of them. How many apples does Maya have now?"
    for sampler in (ConfidenceThreshold(), setblock.EntropyBounded()):
        answer = setblock.generate(model, question, sampler=sampler)
        print(f"{sampler}: {answer.num_tokens} tokens in {answer.num_forwards} passes\n{answer.text}\n")


if __name__ == "__main__":
    main()
