"""Estimate how likely drafted tokens are to be right, by kind, from what became of earlier ones.

Knows kinds and counts. Knows nothing of tokens or models. A kind says where a drafted token comes from: from the model, by its
confidence; or from a text, by how many tokens match there.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

CONFIDENCES = (0.15, 0.35, 0.6, 0.8, 0.92, 0.98, 0.995)
"""Bounds between the kinds of the model's own drafts: the probability of the token that was most likely."""

LONGEST_COPY = 8
"""Tokens: copies that match so many or more are of one kind."""

COPIED = len(CONFIDENCES) + 1
"""The first kind of copies, those that match one token."""

NUM_KINDS = COPIED + LONGEST_COPY

PRIOR = (
    *(0.1, 0.25, 0.45, 0.7, 0.85, 0.95, 0.985, 0.995),  # a model that says how sure it is
    *(0.35, 0.5, 0.6, 0.75, 0.8, 0.85, 0.88, 0.9),
)
"""The chance of each kind, before anything was seen."""

WEIGHT = 6.0
"""Observations that a prior is worth."""


class Chances:
    """Hold the chance of each kind. Those of a row start from those of its model."""

    def __init__(self, parent: "Chances | None" = None, *, memory: float) -> None:
        """Begin without observations.

        Args:
            memory: how many observations of a kind count; older ones fade.
        """
        self._parent, self._memory = parent, memory
        self._right, self._all = [0.0] * NUM_KINDS, [0.0] * NUM_KINDS

    def __getitem__(self, kind: int) -> float:
        """Return the chance that a token of this kind is right, where all before it are."""
        prior = PRIOR[kind] if self._parent is None else self._parent[kind]
        return (self._right[kind] + WEIGHT * prior) / (self._all[kind] + WEIGHT)

    def learn(self, kinds: Sequence[int], *, right: int) -> None:
        """Take a checked draft into account: `right` of its tokens were, and the one behind them was not, if there is one."""
        for place, kind in enumerate(kinds[: right + 1]):
            self._right[kind] += place < right
            self._all[kind] += 1
            if self._all[kind] > self._memory:
                self._right[kind] *= self._memory / self._all[kind]
                self._all[kind] = self._memory
        if self._parent is not None:
            self._parent.learn(kinds, right=right)

    def fade(self, kept: float) -> None:
        """Let all that was seen count less, so that what is not tried any more will be tried again."""
        self._right = [kept * each for each in self._right]
        self._all = [kept * each for each in self._all]

    def reached(self, kinds: Sequence[int]) -> list[float]:
        """Return for each token of a draft how likely it and all before it are right."""
        reached, found = 1.0, []
        for kind in kinds:
            reached *= self[kind]
            found.append(reached)
        return found


class ExpectedDraft:
    """Hold how good a draft may be: for each place, how likely it and all before it are right. It is the mean over recent
    drafts, and before there are any, that of the model's other rows."""

    def __init__(self, parent: "ExpectedDraft | None" = None) -> None:
        self._parent = parent
        self._means: list[float] = []
        self._counts: list[float] = []

    def learn(self, reached: Sequence[float]) -> None:
        """Take a draft into account: `Chances.reached` of it, 0 where nothing was drafted."""
        for place, value in enumerate(reached):
            if place == len(self._means):
                self._means.append(0.0)
                self._counts.append(0.0)
            self._counts[place] += 1
            self._means[place] += (value - self._means[place]) / min(self._counts[place], _RECENT)
        if self._parent is not None:
            self._parent.learn(reached)

    def fade(self, kept: float) -> None:
        """Let all that was seen count less, as in `Chances.fade`."""
        self._counts = [kept * each for each in self._counts]

    def of(self, length: int) -> list[float]:
        """Return the expected `Chances.reached` of a draft of `length` tokens. Places that were never drafted continue the
        trend of those before."""
        of_others = None if self._parent is None else self._parent.of(length)
        found: list[float] = []
        for place in range(length):
            guess = found[-1] ** ((place + 1) / place) if found else _USUAL
            guess = guess if of_others is None else of_others[place]
            if place < len(self._means):
                count = self._counts[place]
                guess = (count * self._means[place] + WEIGHT * guess) / (count + WEIGHT)
            found.append(min(found[-1], guess) if found else guess)
        return found


_USUAL = (
    0.9  # the chance that a drafted token is right where those before it are: rather too much, so that drafts are tried
)
_RECENT = 16.0  # drafts that count


def kinds_of(confidence: Tensor, bounds: Tensor) -> Tensor:
    """Return [B, k] int64, the kinds of tokens that the model drafted with a `confidence` [B, k] float32: the probability of
    the most likely token. `bounds`: `CONFIDENCES` as a tensor."""
    return torch.bucketize(confidence.contiguous(), bounds, right=True)


def copied_kinds(matched: Tensor, size: int) -> Tensor:
    """Return [B, size] int64, the kinds of the places of drafts that are copied where `matched` [B] tokens match. Where the
    first places are right, more tokens match at those behind them."""
    places = torch.arange(size, device=matched.device)
    return COPIED + (matched[:, None] + places - 2).clamp(0, LONGEST_COPY - 1)
