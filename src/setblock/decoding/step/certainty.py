"""How certain a model is of the token at each position: the entropy and the greatest probability of its logits."""

from typing import NamedTuple

import torch
from torch import Tensor


class Certainty(NamedTuple):
    """The entropy [B, n] float32, in nats, and the probability of the most likely token [B, n] float32."""

    entropy: Tensor
    confidence: Tensor


_TILE_ROWS, _TILE_COLUMNS = 4, 65536  # a megabyte
_FEW_NUMBERS = _TILE_ROWS * _TILE_COLUMNS  # of a tile: up to so many are computed at once, candidates or not


def certainty_of(logits: Tensor, greatest: Tensor, candidates: Tensor, *, in_tiles: bool = True) -> Certainty:
    """Return the certainty of logits [B, k, V], given their `greatest` [B, k]. Only `candidates` [B, k] bool have
    meaningful values. `in_tiles`: whether to read a few logits at a time, which is faster on a CPU but makes the host
    read `candidates`."""
    if not in_tiles:  # few operations
        probs = logits.softmax(dim=-1)
        return Certainty(torch.special.entr(probs).sum(dim=-1), probs.amax(dim=-1))
    if logits.numel() <= _FEW_NUMBERS:
        found = _tiled_certainty(logits, greatest)
    else:
        # On a CPU, reading candidates is cheaper than computing all. The temporaries of a tile stay in the caches. Those
        # of a whole vocabulary would be allocated anew each time, which takes longer than the arithmetic.
        found = Certainty(torch.empty_like(greatest), torch.empty_like(greatest))
        for few in torch.split(candidates.nonzero(), _TILE_ROWS):
            here = few.unbind(dim=1)
            found.entropy[here], found.confidence[here] = _tiled_certainty(logits[here], greatest[here])
    # Others get the values of a sure token, so that they don't depend on the number of rows
    return Certainty(found.entropy.where(candidates, 0), found.confidence.where(candidates, 1))


def _tiled_certainty(logits: Tensor, greatest: Tensor) -> Certainty:
    """Return the certainty of logits [..., V], given their `greatest` [...], reading a few tokens at a time. On a CPU, this
    is faster than running each operation over the whole vocabulary.

    With d = x - max(x), w = exp(d) and Z = sum(w): H = log Z - sum(w d) / Z, and the most likely token has probability
    1 / Z.
    """
    total, product = torch.zeros_like(greatest), torch.zeros_like(greatest)
    for tile in torch.split(logits, _TILE_COLUMNS, dim=-1):
        below = (tile - greatest[..., None]).clamp_(min=_NEVER)
        weights = below.exp()
        total += weights.sum(dim=-1)
        product += below.mul_(weights).sum(dim=-1)
    return Certainty(entropy=total.log() - product / total, confidence=total.reciprocal())


_NEVER = -1e4  # exp of it is 0; of a banned token's -inf, w d would not be a number
