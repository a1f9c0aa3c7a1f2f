"""What a sampler is: the rule that says which masked positions of a block a pass reveals."""

from dataclasses import dataclass
from typing import Protocol

from torch import Tensor


@dataclass(frozen=True)
class Selection:
    """A sampler's answer.

    Attributes:
        reveal: [B, k] bool, the positions to reveal; a subset of the candidates, with at least one of each row that has any.
        entropy: [B, k] float32, nats, of the distribution at each position; meaningful at candidates only.
    """

    reveal: Tensor
    entropy: Tensor


class Sampler(Protocol):
    """A rule. Its fields are its hyperparameters and nothing else; it never calls the model and keeps no state."""

    def select(self, logits: Tensor, candidates: Tensor) -> Selection:
        """Choose what to reveal.

        Args:
            logits: [B, k, V] float32.
            candidates: [B, k] bool, the masked positions that may be revealed.
        """
        ...
