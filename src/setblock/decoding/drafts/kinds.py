"""The kinds of drafted tokens: by how sure the model was or, for a copy, by how many tokens match before it.

The chance that a drafted token is right is estimated for each kind (`draft_length`). Shapes: B rows, k places of a
block.
"""

import torch
from torch import Tensor

from setblock.model.protocol.draft_text import LEVELS

CONFIDENCES = (0.15, 0.35, 0.6, 0.8, 0.92, 0.98, 0.995)
"""Bounds between the kinds of the model's own drafts, by the probability of the most likely token."""

LONGEST_COPY = 8
"""Copies that match this many tokens or more are of one kind."""

COPIED = len(CONFIDENCES) + 1
"""The first kind of copies from the row's own text, those that match one token."""

ELSEWHERE = COPIED + LONGEST_COPY
"""The first kind of copies from other texts: each is one of `LEVELS`."""

NUM_KINDS = ELSEWHERE + LEVELS

PRIOR = (
    *(0.1, 0.25, 0.45, 0.7, 0.85, 0.95, 0.985, 0.995),  # a model that says how sure it is
    *(0.35, 0.5, 0.6, 0.75, 0.8, 0.85, 0.88, 0.9),
    *(0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8),
)
"""The chance that a token of each kind is right, before anything was checked."""


def kinds_of(confidence: Tensor, bounds: Tensor) -> Tensor:
    """Return [B, k] int64, the kinds of tokens that the model drafted with a `confidence` [B, k] float32: the probability of
    the most likely token. `bounds`: `CONFIDENCES` as a tensor."""
    return torch.bucketize(confidence.contiguous(), bounds, right=True)


def copied_kinds(matched: Tensor, size: int) -> Tensor:
    """Return [B, size] int64, the kinds of the places of copies with `matched` [B] matching tokens. Later places count
    as longer matches: they matter only if the places before them are right, and then match, too."""
    places = torch.arange(size, device=matched.device)
    return COPIED + (matched[:, None] + places - 2).clamp(0, LONGEST_COPY - 1)


def kinds_of_copy(first: int, count: int) -> list[int]:
    """Return the kinds of the first `count` places of a copy, given the kind of the `first` one. Empty if that is no
    copy's."""
    if first < ELSEWHERE:
        return [min(first + place, ELSEWHERE - 1) for place in range(count)] if first >= COPIED else []
    return [first] * count
