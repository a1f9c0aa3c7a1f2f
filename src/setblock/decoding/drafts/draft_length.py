"""Choose before each pass how much each row of method `exact` drafts: what gives the most tokens for its time.

    rate = tokens a second that recent passes gave, or `MARGIN` times those of plain decoding if these are more
    for each length that drafts may have in this pass:
        tokens  = one of each row + the drafted tokens that are right + those of the next draft, on average
        seconds = of this pass + what checking the next draft adds to the next pass
    take the length with the most tokens - rate * seconds

How often drafted tokens are right and how long passes take is measured (`FadingMeans`, `PassTimes`). A text never depends on
what is chosen: the next pass checks every draft. Shapes: R rows that draft, C lengths that are compared.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from math import ceil, log2
from typing import NamedTuple

import numpy as np

from setblock.devices import PassClock

MARGIN = 1.05  # estimates err, and not all that a draft costs is timed
CHANCES = (2.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3, 0.2, 0.1, 1e-6)  # that drafted tokens must have; none has 2
FREE_TOKENS_CPU, FREE_TOKENS_GPU = 48.0, 512.0  # that take as long to compute as the weights to read, about
WEIGHT = 6.0  # values that a prior counts as
ROW_MEMORY, MODEL_MEMORY = 32.0, 300.0  # values of each mean that count
SLOWER, FASTER = 1 / 16, 1 / 4  # what a pass counts in a mean of seconds: one that took long may have been disturbed
NEAR = 2.0  # times as many tokens
RECENT = 16  # passes that count for what passes give
CAPTURED = "captured"  # the kind of passes that are measured once, when each size is captured
RETRY_AFTER, RETRY_LOSS = 16, 1 / 50  # passes until another length is tried, and how much of their time that may cost


@dataclass
class FadingMeans:
    """Means of numbered values, of which old ones count less and less. Those of a row begin with those of its model."""

    memory: float  # how many values of each number count
    parent: "FadingMeans | None" = None  # gets all of them, too
    _seen: dict[int, tuple[float, float]] = field(default_factory=dict)  # by number, the mean and how many it is of
    _known: list[float] = field(default_factory=list)  # of a model: what `values` returns, until the next update

    def update(self, number: int, value: float) -> None:
        """Add a value."""
        mean, count = self._seen.get(number, (0.0, 0.0))
        count = min(count + 1, self.memory)
        self._seen[number] = mean + (value - mean) / count, count
        self._known = []
        if self.parent is not None:
            self.parent.update(number, value)

    def values(self, count: int, prior: Callable[[int, float], float]) -> list[float]:
        """Return the first `count` means. Each is drawn towards `prior` of its number and the value before it."""
        if len(self._known) == count:
            return self._known
        of_parent = None if self.parent is None else self.parent.values(count, prior)
        found, last = list[float](), 1.0
        for number in range(count):
            last = prior(number, last) if of_parent is None else of_parent[number]
            if number in self._seen:
                mean, seen = self._seen[number]
                last = (seen * mean + WEIGHT * last) / (seen + WEIGHT)
            found.append(last)
        if self.parent is None:
            self._known = found
        return found


@dataclass
class PassTimes:
    """The seconds of passes by how many tokens they compute: a mean for each half of a power of two."""

    free_tokens: float  # how many more take as long as the first
    means: dict[int, list[float]] = field(default_factory=dict)  # the tokens and seconds of each, and how many passes

    def update(self, tokens: int, seconds: float) -> None:
        """Add a pass."""
        mean = self.means.setdefault(ceil(2 * log2(tokens)), [tokens, seconds, 0])
        weight = SLOWER if seconds > mean[1] else FASTER if mean[2] > 2 else 1.0  # the first passes prepare things
        mean[0] += weight * (tokens - mean[0])
        mean[1] += weight * (seconds - mean[1])
        mean[2] += 1

    def seconds(self, tokens: np.ndarray) -> np.ndarray:
        """Return the seconds of passes of so many tokens, in a unit of their own before the first pass. They lie on the line
        between two means, if these are near each other. Else they rise in the ratio of `free_tokens` + tokens from the one
        below, up to that line: so sizes between them are tried."""
        if not self.means:
            return self.free_tokens + tokens
        count, seconds, _ = np.asarray(sorted(self.means.values())).T
        seconds = np.minimum.accumulate(seconds[::-1])[::-1]  # more tokens never take less time
        above = np.searchsorted(count, tokens, side="right")
        below = above.clip(1) - 1
        rising = seconds[below] * (self.free_tokens + tokens) / (self.free_tokens + count[below])
        line = np.interp(tokens, count, seconds, right=np.inf)
        is_near = (above < len(count)) & (count[above.clip(max=len(count) - 1)] <= NEAR * count[below])
        found: np.ndarray = np.where((tokens >= count[0]) & is_near, line, np.minimum(rising, line))
        return found


class RowDraft(NamedTuple):
    """What a row may draft in a pass."""

    reached: Sequence[float]  # of each drafted token, the chance that it and all before it are right
    expected: Sequence[float] = ()  # the same of a whole block's draft, less what copies give without a block
    size: int = 0  # tokens of that block; 0 where none may be fed


class DraftLength(NamedTuple):
    """How much a row drafts in a pass."""

    drafted: int  # tokens that are checked
    fed: int  # tokens of the block


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
    # Known tokens that each row is fed again, if the cache can't be cut back: all until it is fed no draft and no block
    refed: Sequence[int] | None = None


@dataclass
class Recent:
    """What recent passes of one kind over about as many rows gave."""

    tokens: float = 1.0  # of a pass, over those of plain decoding
    seconds: float = 1.0  # the same
    waited: int = 0  # passes since another length was tried
    turn: int = 0  # how many were tried


@dataclass
class DraftLengths:
    """Choose for all requests to a model, which share what is measured."""

    free_tokens: float = FREE_TOKENS_CPU
    clock: PassClock = field(default_factory=PassClock)
    right: FadingMeans = field(default_factory=lambda: FadingMeans(MODEL_MEMORY))  # as in `RowHistory`
    of_blocks: FadingMeans = field(default_factory=lambda: FadingMeans(MODEL_MEMORY))  # as in `RowHistory`
    _times: dict[tuple[str, int], PassTimes] = field(default_factory=dict)  # by kind, and about how many rows
    _recent: dict[tuple[str, int], Recent] = field(default_factory=dict)

    def choose(self, rows: Sequence[RowDraft], shape: PassShape) -> list[DraftLength]:
        """Return how much each row drafts in the next pass."""
        reached = _table([1.0, *row.reached] for row in rows)  # [R, 1 + drafted tokens]
        expected = _table([0.0, *row.expected] for row in rows)  # [R, 1 + those of a block's draft]
        lengths = _lengths(rows, reached[:, 1:], expected[:, 1:], shape.widths)  # [2, C, R]
        now, later = _tokens(reached, expected, lengths)
        now += shape.rows - len(rows)
        seconds, more = self._seconds(reached, lengths, shape)
        # What a pass gives beyond what its seconds give otherwise: as much as recent passes gave, and more than plain decoding
        recent = self._recent.setdefault((shape.kind, _about(shape.rows)), Recent())
        rate = max(MARGIN, recent.tokens / recent.seconds) * now[0] / seconds[0]
        gain = now + later - rate * (seconds + more)
        best = int(gain.argmax())
        # Others are tried again, one after another: the more it is expected to cost, the later
        if len(others := (lengths != lengths[:, best, None]).any(axis=(0, 2)).nonzero()[0]):
            other = int(others[recent.turn % len(others)])
            loss = (gain[best] - gain[other]) / rate / seconds[best]
            if recent.waited >= RETRY_AFTER + loss / RETRY_LOSS:
                recent.waited, recent.turn, best = 0, recent.turn + 1, other
        recent.waited += 1
        recent.tokens += (now[best] / now[0] - recent.tokens) / RECENT
        recent.seconds += (seconds[best] / seconds[0] - recent.seconds) / RECENT
        return [DraftLength(*of_row) for of_row in lengths[:, best].T.tolist()]

    def _seconds(self, reached: np.ndarray, lengths: np.ndarray, shape: PassShape) -> tuple[np.ndarray, np.ndarray]:
        """Return [C], the seconds of a pass, and [C], those that checking its new drafts adds to the next one."""
        drafted, fed = lengths
        this = drafted + fed if shape.fuses_commit else drafted  # else a block has a pass of its own
        new = _chance(reached, lengths) * (fed - 1).clip(0)
        more = np.stack([this, this + new, fed])  # the next pass has about as many other tokens
        if shape.refed is not None:
            known = shape.refed + reached.cumsum(axis=1)[np.arange(len(reached)), drafted]
            more += np.stack([np.broadcast_to(shape.refed, this.shape), known * (this > 0), np.zeros(this.shape)])
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
        """Return the times of passes of a kind over about so many rows. They begin with those of the most similar passes; for
        captured passes, which cost far less than others, only other captured ones are similar."""
        key = kind, _about(rows)
        if key not in self._times:
            is_captured, known = kind == CAPTURED, self._times.items()
            measured = [each for each, times in known if times.means and (each[0] == CAPTURED) == is_captured]
            nearest = min(measured, key=lambda each: (each[0] != kind, abs(each[1] - key[1])), default=None)
            means = {} if nearest is None else self._times[nearest].means
            self._times[key] = PassTimes(self.free_tokens, {size: [*mean[:2], 1] for size, mean in means.items()})
        return self._times[key]

    def curve(self, kind: str, rows: int) -> tuple[tuple[int, float], ...]:
        """Return the seconds of passes over 1, 2, 4, ... tokens, as far as they were measured with about so many rows."""
        times = self._times.get((kind, _about(rows)))
        if times is None or not times.means:
            return ()
        most = int(max(tokens for tokens, *_ in times.means.values()))
        tokens = [1 << bits for bits in range(most.bit_length())]
        return tuple(zip(tokens, times.seconds(np.asarray(tokens, dtype=float)).tolist(), strict=True))


def _lengths(
    rows: Sequence[RowDraft], reached: np.ndarray, expected: np.ndarray, widths: Sequence[int] | None
) -> np.ndarray:
    """Return [2, C, R], the numbers of `DraftLength` that are compared. The first of C are those of plain decoding."""
    size = np.asarray([row.size for row in rows])
    if widths is None:  # each row drafts what is likely enough to be right
        least = np.asarray(CHANCES)[:, None, None]
        drafted, likely = (reached >= least).sum(axis=2), (expected >= least).sum(axis=2)
        fed = np.minimum(size, likely + (likely > 0))
    else:  # each row drafts as much as there is room for
        room = np.asarray(widths)[:, None] - 1
        drafted = np.minimum([len(row.reached) for row in rows], room)
        fed = np.minimum(size, room - drafted)
        fed = np.where(fed > 1, fed, 0)
    return np.concatenate([(drafted, np.zeros_like(drafted)), (drafted, fed)], axis=1)


def _tokens(reached: np.ndarray, expected: np.ndarray, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return [C], the expected tokens of a pass, and [C], those of the drafts that it gives."""
    drafted, fed = lengths
    every = np.arange(len(reached))
    of_draft = reached.cumsum(axis=1)[every, drafted]
    of_block = expected.cumsum(axis=1)[every, (fed - 1).clip(0)]
    return of_draft.sum(axis=1), (_chance(reached, lengths) * of_block).sum(axis=1)


def _chance(reached: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Return [C, R], how likely a pass gives a row a draft: its block, if all that is checked is right."""
    return np.asarray(reached[np.arange(len(reached)), lengths[0]])


def _table(rows: Iterable[Sequence[float]]) -> np.ndarray:
    """Return [R, the most numbers of a row], filled up with zeros."""
    return np.asarray(list(zip_longest(*rows, fillvalue=0.0))).T


def _about(rows: int) -> int:
    """Return the same number for 1 row, for 2, for 3 and 4, for 5 to 8, and so on."""
    return max(0, rows - 1).bit_length()
