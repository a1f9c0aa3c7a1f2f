"""Define a sampler: the rule that says which masked positions of a block a pass reveals."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from setblock import devices

Memory = Mapping[str, Tensor]


@dataclass(frozen=True)
class BlockView:
    """Hold the input of a sampler in one pass. B rows, V tokens, k positions: the block's first ones, as many as may be
    revealed.

    Attributes:
        logits: [B, k, V] float32; -inf for tokens that a request bans. Only candidates have meaningful values.
        candidates: [B, k] bool, masked positions that may be revealed. A row may have none.
        revealed: [B, k] bool, positions that earlier passes fixed.
        memory: what the sampler's last `Selection` left for this pass, zeroed in rows whose block is new; empty in a batch's
            first pass.
        moments: of each distribution, if they are known already.
    """

    logits: Tensor
    candidates: Tensor
    revealed: Tensor
    memory: Memory = field(default_factory=dict)
    moments: "Moments | None" = None

    @cached_property
    def log_probs(self) -> Tensor:
        """Return the log-probabilities [B, k, V], float32."""
        return self.logits.log_softmax(dim=-1)

    @cached_property
    def probs(self) -> Tensor:
        """Return the probabilities [B, k, V], float32."""
        return self.logits.softmax(dim=-1)

    @property
    def entropy(self) -> Tensor:
        """Return the entropy [B, k] float32, in nats. Only candidates have meaningful values."""
        return self._moments.entropy

    @property
    def confidence(self) -> Tensor:
        """Return the probability [B, k] float32 of the most likely token. Only candidates have meaningful values."""
        return self._moments.confidence

    @cached_property
    def margin(self) -> Tensor:
        """Return the probability [B, k] float32 of the most likely token minus that of the second."""
        first, second = self.logits.topk(2, dim=-1).values.unbind(dim=-1)
        return self.confidence * (1 - (second - first).exp())

    @cached_property
    def _moments(self) -> "Moments":
        if self.moments is not None:
            return self.moments
        return moments_of(self.logits, self.logits.amax(dim=-1), self.candidates)


class Moments(NamedTuple):
    """Hold the entropy of distributions [B, n] in nats, and the probability of the most likely token."""

    entropy: Tensor
    confidence: Tensor

    def columns(self, first: int, last: int) -> "Moments":
        """Return those of the columns from `first` to `last`."""
        return Moments(self.entropy[:, first:last], self.confidence[:, first:last])

    def before(self, others: "Moments") -> "Moments":
        """Return these with others on their right."""
        return Moments(*(torch.cat(pair, dim=1) for pair in zip(self, others, strict=True)))


def moments_of(logits: Tensor, greatest: Tensor, candidates: Tensor) -> Moments:
    """Return the moments of logits [B, k, V] whose greatest values are given. Only candidates have meaningful values."""
    if devices.waits(logits.device) or torch.compiler.is_compiling():
        probs = logits.softmax(dim=-1)
        return Moments(torch.special.entr(probs).sum(dim=-1), probs.amax(dim=-1))
    if logits.numel() <= _FEW_NUMBERS:
        found = _tiled_moments(logits, greatest)
    else:
        found = _moments_of_candidates(logits, greatest, candidates)
    # The rest as if sure, so that they don't depend on how many rows there are
    return Moments(found.entropy.where(candidates, 0), found.confidence.where(candidates, 1))


def _tiled_moments(logits: Tensor, greatest: Tensor) -> Moments:
    """Return the moments of logits [..., V] whose greatest values are given, reading `_TILE_COLUMNS` tokens at a time. On a
    CPU this takes less time than a pass over all for each operation.

    With d = x - max(x), w = exp(d) and Z = sum(w): H = log Z - sum(w d) / Z, and the most likely token has probability 1 / Z. A
    vocabulary is long and decoding's own work is little else than reading it, so it is read as few times as can be: no
    probabilities are made.
    """
    total = product = None
    for tile in torch.split(logits, _TILE_COLUMNS, dim=-1):
        below = (tile - greatest[..., None]).clamp_(min=_NEVER)
        weights = below.exp()
        of_tile, product_of_tile = weights.sum(dim=-1), below.mul_(weights).sum(dim=-1)
        total = of_tile if total is None else total + of_tile
        product = product_of_tile if product is None else product + product_of_tile
    assert total is not None
    assert product is not None
    return Moments(entropy=total.log() - product / total, confidence=total.reciprocal())


_NEVER = -1e4  # exp of it is 0; of a banned token's -inf, w d would not be a number


def _moments_of_candidates(logits: Tensor, greatest: Tensor, candidates: Tensor) -> Moments:
    """Return `_tiled_moments` [B, k] of the candidates on a CPU; other values are arbitrary. Arithmetic is slow there, and
    reading a value is not.

    The temporaries of a tile stay in the caches. Those of a whole vocabulary would be memory that is asked of the system anew
    each time, which takes longer than the arithmetic.
    """
    entropy, confidence = torch.empty_like(greatest), torch.empty_like(greatest)
    for few in torch.split(candidates.nonzero(), _TILE_ROWS):
        here = few.unbind(dim=1)
        entropy[here], confidence[here] = _tiled_moments(logits[here], greatest[here])
    return Moments(entropy, confidence)


_TILE_ROWS, _TILE_COLUMNS = 16, 16384  # a megabyte
_FEW_NUMBERS = _TILE_ROWS * _TILE_COLUMNS  # of a tile: so many are read at once, candidates or not


@dataclass(frozen=True)
class Selection:
    """Hold the output of a sampler.

    Attributes:
        reveal: [B, k] bool, the positions to reveal; a subset of the candidates, with at least one of each row that has any.
        logits: [B, k, V] float32, the logits that tokens are chosen from, if the rule changes them; otherwise None.
        memory: tensors [B, k, ...] that the next pass receives.
    """

    reveal: Tensor
    logits: Tensor | None = None
    memory: Memory = field(default_factory=dict)


class Dial(NamedTuple):
    """Hold the hyperparameter that a sweep varies by default, with its values from careful to careless."""

    name: str
    values: tuple[float, ...]


class Sampler(Protocol):
    """Define a rule: a frozen dataclass whose fields are its hyperparameters. It never calls the model. It returns what
    it must remember for later passes in `Selection.memory`. Rows are independent of each other.

    A class that commands and files use by name has two more attributes: `name`, and `dial` if it can be swept.
    """

    def select(self, block: BlockView) -> Selection:
        """Choose what a pass reveals."""
        ...


def at_least_one(reveal: Tensor, block: BlockView, *, score: Tensor) -> Tensor:
    """Return `reveal` [B, k] among the candidates, with at least one position of each row that has candidates. In a row
    without any, it is the candidate with the highest `score` [B, k] (the leftmost of a tie). So every pass reveals a
    token, and a block takes at most k passes."""
    best = score.where(block.candidates, -torch.inf).argmax(dim=-1, keepdim=True)  # [B, 1]
    fallback = torch.zeros_like(block.candidates).scatter(-1, best, True)
    reveal = reveal & block.candidates
    return torch.where(reveal.any(dim=-1, keepdim=True), reveal, fallback & block.candidates)
