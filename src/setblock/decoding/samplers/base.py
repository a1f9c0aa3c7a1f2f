"""The interface of samplers: rules that select which masked positions of a block a pass reveals."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from setblock.decoding.step.certainty import certainty_of

Memory = Mapping[str, Tensor]


@dataclass(frozen=True)
class BlockView:
    """The input of a sampler in one pass. B rows, V tokens, k positions: the block's first ones, as many as may be
    revealed. Only candidates have meaningful values.

    Attributes:
        logits: [B, k, V] float32; -inf for tokens that a request bans.
        candidates: [B, k] bool, masked positions that may be revealed. A row may have none.
        revealed: [B, k] bool, positions that earlier passes fixed.
        entropy: [B, k] float32, in nats.
        confidence: [B, k] float32, the probability of the most likely token.
        memory: that of the sampler's last `Selection`, zeroed in rows whose block is new; empty in the first pass.
    """

    logits: Tensor
    candidates: Tensor
    revealed: Tensor
    entropy: Tensor
    confidence: Tensor
    memory: Memory = field(default_factory=dict)

    @classmethod
    def of(cls, logits: Tensor, candidates: Tensor, revealed: Tensor, memory: Memory | None = None) -> "BlockView":
        """Return the view of a block, to try a sampler without a model."""
        entropy, confidence = certainty_of(logits, logits.amax(dim=-1), candidates)
        return cls(logits, candidates, revealed, entropy, confidence, memory or {})

    @cached_property
    def probs(self) -> Tensor:
        """The probabilities [B, k, V], float32."""
        return self.logits.softmax(dim=-1)

    @cached_property
    def margin(self) -> Tensor:
        """The probability of the most likely token minus that of the second, [B, k] float32."""
        first, second = self.logits.topk(2, dim=-1).values.unbind(dim=-1)
        return self.confidence * (1 - (second - first).exp())


@dataclass(frozen=True)
class Selection:
    """The output of a sampler.

    Attributes:
        reveal: [B, k] bool, the positions to reveal; a subset of the candidates, with at least one of each row that has
            any.
        logits: [B, k, V] float32, the logits that tokens are chosen from, if the rule changes them; otherwise None.
        memory: tensors [B, k, ...] that the next pass receives; the dimensions after k are the same in all passes.
    """

    reveal: Tensor
    logits: Tensor | None = None
    memory: Memory = field(default_factory=dict)


class Dial(NamedTuple):
    """The hyperparameter that a sweep varies by default, with its values from careful to careless."""

    name: str
    values: tuple[float, ...]


class Sampler(Protocol):
    """A rule: a frozen dataclass whose fields are its hyperparameters. Rows are independent of each other. It never
    calls the model, and keeps values for later passes in `Selection.memory` only.

    A class that commands and files use by name has two more attributes: `name`, and `dial` if it can be swept.
    """

    def select(self, block: BlockView) -> Selection:
        """Return the positions that a pass reveals."""


def at_least_one(reveal: Tensor, block: BlockView, *, score: Tensor) -> Tensor:
    """Return the candidates of `reveal` [B, k] bool; in a row where there are none, the candidate with the highest
    `score` [B, k] (the leftmost of a tie). So every pass reveals a token, and a block takes at most k passes."""
    best = score.where(block.candidates, -torch.inf).argmax(dim=-1, keepdim=True)  # [B, 1]
    fallback = torch.zeros_like(block.candidates).scatter(-1, best, True)
    reveal = reveal & block.candidates
    return torch.where(reveal.any(dim=-1, keepdim=True), reveal, fallback & block.candidates)
