"""Choose before each pass how much each row of method `exact` drafts: what gives the most tokens for its time.

    for each length that drafts may have in this pass:
        tokens  = one of each row + the drafted tokens that are right + those of the next draft, on average
        seconds = of this pass + what checking the next draft adds to the next pass
    take the length with the most tokens a second, if these are `MARGIN` times those of plain decoding

How often drafted tokens are right and how long passes take is measured (`FadingMeans`, `PassTimes`). A text never depends on
what is chosen: the next pass checks every draft. Shapes: R rows that draft, C lengths that are compared.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from setblock.devices import PassClock

MARGIN = 1.05  # estimates err, and not all that a draft costs is timed
CHANCES = (
    2.0,
    0.9,
    0.8,
    0.7,
    0.6,
    0.5,
    0.4,
    0.3,
    0.2,
    0.1,
    1e-6,
)  # that drafted tokens must have; none has a chance of 2
FREE_TOKENS_CPU, FREE_TOKENS_GPU = 48.0, 512.0  # that take as long to compute as the weights to read, about
WEIGHT = 6.0  # values that a prior counts as
ROW_MEMORY, MODEL_MEMORY = 20.0, 300.0  # values of each mean that count
SLOWER, FASTER = 1 / 16, 1 / 4  # what a pass counts in a mean of seconds: one that took long may have been disturbed
RETRY_AFTER, RETRY_LOSS = (
    16,
    1 / 50,
)  # passes until another length is tried again, and how much of their time that may cost


class FadingMeans:
    """Means of numbered values, of which old ones count less and less. Those of a row begin with those of its model."""

    def __init__(self, memory: float, parent: "FadingMeans | None" = None) -> None:
        """Begin without values. `memory`: how many of each number count. `parent`: gets all of them, too."""
        self._memory, self._parent = memory, parent
        self._means: list[float] = []
        self._counts: list[float] = []

    def update(self, number: int, value: float) -> None:
        """Add a value."""
        missing = number + 1 - len(self._means)
        self._means += [0.0] * missing
        self._counts += [0.0] * missing
        self._counts[number] = count = min(self._counts[number] + 1, self._memory)
        self._means[number] += (value - self._means[number]) / count
        if self._parent is not None:
            self._parent.update(number, value)

    def values(self, prior: Sequence[float]) -> list[float]:
        """Return as many means as there are of `prior`, each drawn towards it."""
        prior = prior if self._parent is None else self._parent.values(prior)
        known = zip(self._counts, self._means, prior, strict=False)
        found = [(count * mean + WEIGHT * each) / (count + WEIGHT) for count, mean, each in known]
        return [*found, *prior[len(found) :]]


class PassTimes:
    """The seconds of passes by how many tokens they compute: a mean for each half of a power of two."""

    def __init__(self, free_tokens: float, like: "PassTimes | None" = None) -> None:
        """Begin with the means of other passes, if there are any. `free_tokens`: how many more take as long as the first."""
        self._free_tokens = free_tokens
        # The tokens and seconds of each mean, and how many passes it has seen
        self._means: dict[int, list[float]] = {} if like is None else {n: [*m[:2], 1] for n, m in like._means.items()}

    def update(self, tokens: int, seconds: float) -> None:
        """Add a pass."""
        mean = self._means.setdefault(ceil(2 * log2(tokens)), [tokens, seconds, 0])
        weight = SLOWER if seconds > mean[1] else FASTER if mean[2] > 2 else 1.0  # the first passes prepare things
        mean[0] += weight * (tokens - mean[0])
        mean[1] += weight * (seconds - mean[1])
        mean[2] += 1

    def seconds(self, tokens: np.ndarray) -> np.ndarray:
        """Return the seconds of passes of so many tokens, in a unit of their own before the first pass. They lie on straight
        lines between the means, and beyond them are in the ratio of 1 + tokens / `free_tokens`."""
        if not self._means:
            return 1 + tokens / self._free_tokens
        count, seconds, _ = np.asarray(sorted(self._means.values())).T
        seconds = np.minimum.accumulate(seconds[::-1])[::-1]  # more tokens never take less time
        near = tokens.clip(count[0], count[-1])
        found: np.ndarray = np.interp(near, count, seconds) * (self._free_tokens + tokens) / (self._free_tokens + near)
        return found

    @property
    def most(self) -> float:
        """Return the most tokens that passes had, about; 0 before the first pass."""
        return max((tokens for tokens, *_ in self._means.values()), default=0.0)


class RowDraft(NamedTuple):
    """What a row may draft in a pass."""

    reached: Sequence[float]  # of each drafted token, the chance that it and all before it are right
    expected: Sequence[
        float
    ] = ()  # the same of the draft that a whole block gives, less what copies give without a block
    size: int = 0  # tokens of that block; 0 where none may be fed
    branches: int = 0  # the most that may be fed


class DraftLength(NamedTuple):
    """How much a row drafts in a pass."""

    drafted: int  # tokens that are checked
    fed: int  # tokens of the block
    branches: int = 0  # at the first of the drafted tokens
    branch_size: int = 0  # tokens of each


@dataclass(frozen=True)
class PassShape:
    """What else is known of a pass."""

    kind: str  # of passes that take as long
    rows: int  # that are fed something, prompts left out
    others: int = 0  # tokens of rows that don't choose
    widths: Sequence[int] | None = None  # tokens that each row may have, where all have as many; else None
    padded_rows: int = 0  # that are computed, where all have as many
    fuses_commit: bool = True  # as in `Runner`
    computed: Callable[[int], int] = int  # as in `Runner`


@dataclass
class DraftLengths:
    """Choose for all requests to a model, which share what is measured."""

    free_tokens: float = FREE_TOKENS_CPU
    clock: PassClock = field(default_factory=PassClock)
    right: FadingMeans = field(default_factory=lambda: FadingMeans(MODEL_MEMORY))  # as in `RowHistory`
    of_blocks: FadingMeans = field(default_factory=lambda: FadingMeans(MODEL_MEMORY))  # as in `RowHistory`
    _times: dict[tuple[str, int], PassTimes] = field(default_factory=dict)  # by kind, and about how many rows
    _retries: dict[tuple[str, int], tuple[int, int]] = field(
        default_factory=dict
    )  # passes since one, and which is next

    def choose(self, rows: Sequence[RowDraft], shape: PassShape) -> list[DraftLength]:
        """Return how much each row drafts in the next pass."""
        lengths = lengths_of(rows, shape.widths)  # [4, C, R]
        tokens, seconds = self._expected(rows, lengths, shape)
        rates = tokens / seconds
        best = int(rates.argmax())
        best = best if rates[best] > MARGIN * rates[0] else 0
        # Others are tried again, one after another: the more it is expected to cost, the later
        key = shape.kind, _about(shape.rows)
        waited, turn = self._retries.get(key, (0, 0))
        if len(others := (lengths != lengths[:, best, None]).any(axis=(0, 2)).nonzero()[0]):
            other = int(others[turn % len(others)])
            loss = (1 - rates[other] / rates[best]) * seconds[other] / seconds[best]
            if waited >= RETRY_AFTER + loss / RETRY_LOSS:
                waited, turn, best = 0, turn + 1, other
        self._retries[key] = waited + 1, turn
        return [DraftLength(*of_row) for of_row in lengths[:, best].T.tolist()]

    def _expected(
        self, rows: Sequence[RowDraft], lengths: np.ndarray, shape: PassShape
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return [C] the tokens of a pass and of the drafts that it gives, and [C] the seconds of both."""
        drafted, fed, branches, branch_size = lengths
        every, times = np.arange(len(rows)), self.times(shape.kind, shape.rows)

        def seconds(more: np.ndarray) -> np.ndarray:
            """Return [C], of passes with so many tokens [C, R] besides one of each row."""
            total = shape.others + len(rows) + more.sum(axis=1)
            if shape.widths is not None:
                total = shape.padded_rows * np.maximum(1 + more.max(axis=1), shape.widths[0])
            return times.seconds(np.asarray([shape.computed(round(each)) for each in total.tolist()], dtype=float))

        reached = _table([1.0, *row.reached] for row in rows)
        tokens = reached.cumsum(axis=1)[every, drafted]
        # The block gives the next draft if all that is checked is right, and a branch if it is wrong there
        chance = reached[every, drafted] + 1 - reached[every, branches]
        new = (fed - 1).clip(0)
        tokens = tokens + chance * _table([0.0, *accumulate(row.expected)] for row in rows)[every, new]
        more = drafted + branches * branch_size
        taken = seconds(more + fed if shape.fuses_commit else more)
        if not shape.fuses_commit:  # a block has a pass of its own
            taken = taken + np.where(fed.any(axis=1), seconds(fed), 0.0)
        next_one = seconds(chance * new) - seconds(np.zeros_like(chance))
        return tokens.sum(axis=1) + shape.rows - len(rows), taken + next_one

    def times(self, kind: str, rows: int) -> PassTimes:
        """Return the times of passes of a kind over about so many rows. They begin with those of the most similar passes."""
        key = kind, _about(rows)
        if key not in self._times:
            measured = [each for each, times in self._times.items() if times.most]
            nearest = min(measured, key=lambda each: (each[0] != kind, abs(each[1] - key[1])), default=key)
            self._times[key] = PassTimes(self.free_tokens, self._times.get(nearest))
        return self._times[key]

    def curve(self, kind: str, rows: int) -> tuple[tuple[int, float], ...]:
        """Return the seconds of passes over 1, 2, 4, ... tokens, as far as they were measured with about so many rows."""
        times = self._times.get((kind, _about(rows)))
        if times is None or not times.most:
            return ()
        tokens = [1 << bits for bits in range(int(times.most).bit_length())]
        return tuple(zip(tokens, times.seconds(np.asarray(tokens, dtype=float)).tolist(), strict=True))


def lengths_of(rows: Sequence[RowDraft], widths: Sequence[int] | None) -> np.ndarray:
    """Return [4, C, R], the numbers of `DraftLength` that are compared. The first of C are those of plain decoding."""
    size = np.asarray([row.size for row in rows])
    if widths is None:  # each row drafts what is likely enough to be right
        least = np.asarray(CHANCES)[:, None, None]
        drafted = (_table(row.reached for row in rows) >= least).sum(axis=2)
        likely = (_table(row.expected for row in rows) >= least).sum(axis=2)
        fed = np.minimum(size, likely + (likely > 0))
    else:  # each row drafts as much as there is room for
        room = np.asarray(widths)[:, None] - 1
        drafted = np.minimum([len(row.reached) for row in rows], room)
        fed = np.minimum(size, room - drafted)
        fed = np.where(fed > 1, fed, 0)
    branches = np.minimum([row.branches for row in rows], drafted) * (fed > 0)
    counts = [0, *(1 << bits for bits in range(int(branches.max()).bit_length()))]
    parts = [(drafted, fed, some := np.minimum(branches, count), fed * (some > 0)) for count in counts]
    return np.concatenate(parts, axis=1)


def _table(rows: Iterable[Sequence[float]]) -> np.ndarray:
    """Return [R, the most numbers of a row, at least 1], filled up with zeros."""
    numbers = list(rows)
    table = np.zeros((len(numbers), max(1, *map(len, numbers))))
    for row, of_row in zip(table, numbers, strict=True):
        row[: len(of_row)] = of_row
    return table


def _about(rows: int) -> int:
    """Return the same number for 1 row, for 2, for 3 and 4, for 5 to 8, and so on."""
    return max(0, rows - 1).bit_length()
