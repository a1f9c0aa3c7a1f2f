"""The choice of draft lengths in method `exact`: before each pass, those that give the most tokens for its time.

    rate = tokens per second of recent passes, or `MARGIN` times those of plain decoding if these are more
    for each length that drafts may have in this pass:
        tokens  = one of each row + the drafted tokens that are right + those of the next draft, on average
        seconds = of this pass + what checking the next draft adds to the next pass
    take the length with the most tokens - rate * seconds

How often drafted tokens are right and how long passes take is measured (`FadingMeans`, `PassTimes`). The text never
depends on the choice: the next pass checks every draft. Shapes: R rows that draft, C lengths that are compared.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from setblock.devices import PassClock

MARGIN = 1.05  # for errors of estimates, and for costs of drafts that are not timed
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
)  # that drafted tokens must have at least; 2 excludes all
FREE_TOKENS_CPU, FREE_TOKENS_GPU = 48.0, 512.0  # about as many as are computed in the time of reading the weights
WEIGHT = 6.0  # of a prior, in values
ROW_MEMORY, MODEL_MEMORY = 32.0, 300.0  # of each mean, in values
SLOWER, FASTER = 1 / 16, 1 / 4  # weights of a pass in a mean of seconds: a slow one may have been disturbed
NEAR = 2.0  # the largest ratio of tokens of two means that are interpolated
RECENT = 16  # passes in the means of recent passes
RETRY_AFTER, RETRY_LOSS = (
    16,
    1 / 50,
)  # passes until another length is tried, and the share of their time that it may cost


class FadingMeans:
    """Running means of numbered quantities, in which old values fade. A row's start from its model's."""

    def __init__(self, memory: float, parent: "FadingMeans | None" = None) -> None:
        """Start without values. `memory`: how many recent values of each number count. `parent`: receives all values,
        too."""
        self._memory, self._parent = memory, parent
        self._means: list[float] = []
        self._counts: list[float] = []
        self._known: list[float] = []  # of a model: its values, until the next update

    def update(self, number: int, value: float) -> None:
        """Add a value of a number."""
        self._known = []
        missing = number + 1 - len(self._means)
        self._means += [0.0] * missing
        self._counts += [0.0] * missing
        self._counts[number] = count = min(self._counts[number] + 1, self._memory)
        self._means[number] += (value - self._means[number]) / count
        if self._parent is not None:
            self._parent.update(number, value)

    def values(self, count: int, prior: Callable[[int, float], float]) -> list[float]:
        """Return the first `count` means. Each is drawn towards the parent's mean or, without a parent, towards `prior`
        of its number and of the mean before it."""
        of_parent = None if self._parent is None else self._parent.values(count, prior)
        if len(self._known) == count:
            return self._known
        found, last, known = list[float](), 1.0, len(self._means)
        for number in range(count):
            last = prior(number, last) if of_parent is None else of_parent[number]
            if number < known:
                seen = self._counts[number]
                last = (seen * self._means[number] + WEIGHT * last) / (seen + WEIGHT)
            found.append(last)
        if self._parent is None:
            self._known = found
        return found


class PassTimes:
    """The seconds of passes by how many tokens they compute: a mean for each half of a power of two."""

    def __init__(self, free_tokens: float, like: "PassTimes | None" = None) -> None:
        """Start with the means of `like`, if given. `free_tokens`: how many tokens take as long as a pass's fixed
        cost."""
        self._free_tokens = free_tokens
        # The tokens and seconds of each mean, and how many passes it has seen
        self._means: dict[int, list[float]] = {} if like is None else {n: [*m[:2], 1] for n, m in like._means.items()}

    def update(self, tokens: int, seconds: float) -> None:
        """Add a pass."""
        mean = self._means.setdefault(ceil(2 * log2(tokens)), [tokens, seconds, 0])
        weight = SLOWER if seconds > mean[1] else FASTER if mean[2] > 2 else 1.0  # the first passes include setup
        mean[0] += weight * (tokens - mean[0])
        mean[1] += weight * (seconds - mean[1])
        mean[2] += 1

    def seconds(self, tokens: np.ndarray) -> np.ndarray:
        """Return the estimated seconds of passes of so many `tokens`; before the first pass, in an arbitrary unit.

        They are interpolated between two means that are near each other. Otherwise they grow in proportion to
        `free_tokens` + tokens from the mean below, at most to the interpolation: so sizes between distant means are
        tried.
        """
        if not self._means:
            return self._free_tokens + tokens
        count, seconds, _ = np.asarray(sorted(self._means.values())).T
        seconds = np.minimum.accumulate(seconds[::-1])[::-1]  # more tokens never take less time
        above = np.searchsorted(count, tokens, side="right")
        below = above.clip(1) - 1
        rising = seconds[below] * (self._free_tokens + tokens) / (self._free_tokens + count[below])
        line = np.interp(tokens, count, seconds, right=np.inf)
        is_near = (above < len(count)) & (count[above.clip(max=len(count) - 1)] <= NEAR * count[below])
        found: np.ndarray = np.where((tokens >= count[0]) & is_near, line, np.minimum(rising, line))
        return found

    @property
    def most(self) -> float:
        """About the most tokens of a pass so far; 0 before the first pass."""
        return max((tokens for tokens, *_ in self._means.values()), default=0.0)


class RowDraft(NamedTuple):
    """What a row may draft in a pass."""

    reached: Sequence[float]  # for each drafted token, the chance that it and all before it are right
    expected: Sequence[float] = ()  # the same for the draft of a whole block, minus what copies give without a block
    size: int = 0  # tokens of that block; 0 if none may be fed
    branches: int = 0  # the most branches that may be fed


class DraftLength(NamedTuple):
    """How much a row drafts in a pass: the result of the choice."""

    drafted: int  # tokens that are checked
    fed: int  # tokens of the next block
    branches: int = 0  # at the first of the drafted tokens
    branch_size: int = 0  # tokens of each


@dataclass(frozen=True)
class PassShape:
    """The properties of a pass on which its time depends, besides the drafts."""

    kind: str  # passes of one kind with as many tokens take equally long
    rows: int  # rows that are fed something, without prompts
    others: int = 0  # tokens of rows without a choice
    widths: Sequence[int] | None = None  # the possible tokens of a row if rows are padded to the same width; else None
    padded_rows: int = 0  # rows that are computed if rows are padded
    fuses_commit: bool = True  # as in `Runner`
    computed: Callable[[int], int] = int  # as in `Runner`


@dataclass
class Recent:
    """Means over recent passes of one kind and about the same number of rows."""

    tokens: float = 1.0  # of a pass, divided by those of plain decoding
    seconds: float = 1.0  # the same
    waited: int = 0  # passes since another length was tried
    turn: int = 0  # how many other lengths were tried


@dataclass
class DraftLengths:
    """The choice of draft lengths for all requests to a model, which share its measurements."""

    free_tokens: float = FREE_TOKENS_CPU
    clock: PassClock = field(default_factory=PassClock)
    right: FadingMeans = field(default_factory=lambda: FadingMeans(MODEL_MEMORY))  # as in `RowHistory`
    of_blocks: FadingMeans = field(default_factory=lambda: FadingMeans(MODEL_MEMORY))  # as in `RowHistory`
    _times: dict[tuple[str, int], PassTimes] = field(default_factory=dict)  # by kind and `_about` of rows
    _recent: dict[tuple[str, int], Recent] = field(default_factory=dict)

    def choose(self, rows: Sequence[RowDraft], shape: PassShape) -> list[DraftLength]:
        """Return how much each row drafts in the next pass, for all `rows` with a choice."""
        reached = _table([1.0, *row.reached] for row in rows)  # [R, 1 + drafted tokens]
        expected = _table([0.0, *row.expected] for row in rows)  # [R, 1 + those of a block's draft]
        lengths = _lengths(rows, reached[:, 1:], expected[:, 1:], shape.widths)  # [4, C, R]
        now, later = _tokens(reached, expected, lengths)
        now += shape.rows - len(rows)
        seconds, more = self._seconds(reached, lengths, shape)
        # The tokens of a pass beyond its seconds times the rate of recent passes, or of plain decoding with a margin
        recent = self._recent.setdefault((shape.kind, _about(shape.rows)), Recent())
        rate = max(MARGIN, recent.tokens / recent.seconds) * now[0] / seconds[0]
        worth = now + later - rate * (seconds + more)
        best = int(worth.argmax())
        # Other lengths are tried in turn: the larger the expected loss, the later
        if len(others := (lengths != lengths[:, best, None]).any(axis=(0, 2)).nonzero()[0]):
            other = int(others[recent.turn % len(others)])
            loss = (worth[best] - worth[other]) / rate / seconds[best]
            if recent.waited >= RETRY_AFTER + loss / RETRY_LOSS:
                recent.waited, recent.turn, best = 0, recent.turn + 1, other
        recent.waited += 1
        recent.tokens += (now[best] / now[0] - recent.tokens) / RECENT
        recent.seconds += (seconds[best] / seconds[0] - recent.seconds) / RECENT
        return [DraftLength(*of_row) for of_row in lengths[:, best].T.tolist()]

    def _seconds(self, reached: np.ndarray, lengths: np.ndarray, shape: PassShape) -> tuple[np.ndarray, np.ndarray]:
        """Return [C], the seconds of a pass, and [C], the seconds that checking its new drafts adds to the next one."""
        drafted, fed, branches, branch_size = lengths
        checked = drafted + branches * branch_size
        this = checked + fed if shape.fuses_commit else checked  # unfused, a block has a separate pass
        new = _chance(reached, lengths) * (fed - 1).clip(0)
        more = np.stack([this, this + new, fed])  # the next pass has about as many other tokens
        total = shape.others + len(reached) + more.sum(axis=2)  # [3, C]
        if shape.widths is not None:
            needed, widths = 1 + more.max(axis=2), np.asarray(shape.widths)
            wide = widths[np.searchsorted(widths, needed).clip(max=len(widths) - 1)]
            total = shape.padded_rows * np.maximum(needed, wide)
        computed = [shape.computed(round(tokens)) for tokens in total.ravel().tolist()]
        times = self.times(shape.kind, shape.rows).seconds(np.asarray(computed, dtype=float))
        seconds, with_new, apart = times.reshape(total.shape)
        apart = np.where(fed.any(axis=1) & (not shape.fuses_commit), apart, 0.0)
        return seconds, with_new - seconds + apart

    def times(self, kind: str, rows: int) -> PassTimes:
        """Return the times of passes of a kind over about so many rows. New ones start from those of the most similar
        passes."""
        key = kind, _about(rows)
        if key not in self._times:
            measured = [each for each, times in self._times.items() if times.most]
            nearest = min(measured, key=lambda each: (each[0] != kind, abs(each[1] - key[1])), default=key)
            self._times[key] = PassTimes(self.free_tokens, self._times.get(nearest))
        return self._times[key]

    def curve(self, kind: str, rows: int) -> tuple[tuple[int, float], ...]:
        """Return (tokens, seconds) of passes over 1, 2, 4, ... tokens, as far as measured with about so many rows."""
        times = self._times.get((kind, _about(rows)))
        if times is None or not times.most:
            return ()
        tokens = [1 << bits for bits in range(int(times.most).bit_length())]
        return tuple(zip(tokens, times.seconds(np.asarray(tokens, dtype=float)).tolist(), strict=True))


def _lengths(
    rows: Sequence[RowDraft], reached: np.ndarray, expected: np.ndarray, widths: Sequence[int] | None
) -> np.ndarray:
    """Return [4, C, R], the fields of each compared `DraftLength`. The first of C are those of plain decoding."""
    size = np.asarray([row.size for row in rows])
    if widths is None:  # each row drafts the tokens that are likely enough to be right
        least = np.asarray(CHANCES)[:, None, None]
        drafted, likely = (reached >= least).sum(axis=2), (expected >= least).sum(axis=2)
        fed = np.minimum(size, likely + (likely > 0))
    else:  # each row drafts as much as fits the width
        room = np.asarray(widths)[:, None] - 1
        drafted = np.minimum([len(row.reached) for row in rows], room)
        fed = np.minimum(size, room - drafted)
        fed = np.where(fed > 1, fed, 0)
    none = np.zeros_like(drafted)
    most = np.minimum([row.branches for row in rows], drafted) * (fed > 0)
    parts = [(drafted, none, none, none), (drafted, fed, none, none)]
    for bits in range(int(most.max()).bit_length()):
        branches = np.minimum(most, 1 << bits)
        parts.append((drafted, fed, branches, fed * (branches > 0)))
    return np.concatenate(parts, axis=1)


def _tokens(reached: np.ndarray, expected: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return [C], the expected tokens of a pass, and [C], those of the new drafts that it gives."""
    drafted, fed, *_ = lengths
    every = np.arange(len(reached))
    of_draft = reached.cumsum(axis=1)[every, drafted]
    of_block = expected.cumsum(axis=1)[every, (fed - 1).clip(0)]
    return of_draft.sum(axis=1), (_chance(reached, lengths) * of_block).sum(axis=1)


def _chance(reached: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return [C, R], the chance that a pass gives a row a new draft: by its block if the whole draft is right, or by a
    branch."""
    drafted, _, branches, _ = lengths
    every = np.arange(len(reached))
    found: np.ndarray = reached[every, drafted] + 1 - reached[every, branches]
    return found


def _table(rows: Iterable[Sequence[float]]) -> np.ndarray:
    """Return `rows` as [R, n], padded with zeros; n is the longest row's length, at least 1."""
    numbers = list(rows)
    table = np.zeros((len(numbers), max(1, *map(len, numbers))))
    for row, of_row in zip(table, numbers, strict=True):
        row[: len(of_row)] = of_row
    return table


def _about(rows: int) -> int:
    """Return the same number for 1 row, for 2, for 3 and 4, for 5 to 8, and so on."""
    return max(0, rows - 1).bit_length()
