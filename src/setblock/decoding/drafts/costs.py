"""Time passes without waiting for them, learn what a pass costs as a function of its size, and remember what passes gave and
what was decided for them.

Knows numbers, clocks and devices, and of drafts how long they are. Knows nothing of models.

    seconds = start + sum of slope_i * (tokens within segment i) + sum of step_j, if tokens > `STEPS`[j]
              + per_output * tokens that are not of prompts + per_row * rows + per_cached * cached
              + uneven * `unevenness` of the rows' tokens + block, if any row is fed a future block

The segments lie between `KNOTS`, so that a pass may cost the same up to some size, as on a GPU, or rise from the first token
on. A step is what it costs more beyond some size: kernels compute so many tokens at a time. Rows of uneven lengths need
further parts of attention, and a block needs the products of an adapter, where there is one. Tokens of prompts have no
output. They say what many tokens cost before so many were ever drafted. All coefficients are at least 0.
They minimise the relative error over recent passes, with a weak prior; a pass that was disturbed, and took long, counts for
little, and so does the first one of its size, which prepares its products.
"""

import time
from collections import Counter, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from setblock.decoding.drafts.gains import DraftChoice

KNOTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
"""Tokens of a pass between which its cost is taken to be linear."""

STEPS = (16, 32)
"""Tokens of a pass beyond which its cost may rise at once."""

FADING = 0.99  # what an observation still counts after one more: of the last hundred passes, most
PRIOR = 0.02  # of an observation: how much the prior counts for each segment

MOST_CACHED = 1024
"""Positions: a unit of the cache's length, so that all coefficients are of like size."""


def unevenness(more: Iterable[int]) -> int:
    """Return how unlike the numbers of tokens are that rows are fed besides one: 0 where all have as many binary digits, as 4
    to 7 have. Attention computes rows as wide as the widest, or apart."""
    digits = [each.bit_length() for each in more]
    return max(digits, default=0) - min(digits, default=0)


class TimedPass(NamedTuple):
    """Hold a pass and its time."""

    kind: str  # the name of the kind of pass
    tokens: int  # that it computed, padding included
    rows: int  # that took part; where only prompts were fed, all rows of the batch, for these will decode
    cached: int  # positions that they had in the cache together
    uneven: int  # `unevenness` of its rows, those that were fed a prompt left out
    has_block: bool  # whether any row was fed a future block
    seconds: float = 0.0  # its time, once it is known
    prompts: int = 0  # how many of the tokens were of prompts


class LearnedCosts:
    """Learn what passes of one kind cost."""

    def __init__(self, *, free_tokens: float, like: "LearnedCosts | None" = None) -> None:
        """Begin with a prior. `free_tokens`: how many more tokens take as long as the first one, about the machine's operations
        a second over its bytes a second. `like`: learned costs of other passes, which count for a few observations."""
        self._prior, self._of_same = _prior(free_tokens)
        count = self._prior.shape[1]
        self.num_passes = 0
        self._products, self._sums = np.zeros((count, count)), np.zeros(count)
        self._coefficients = np.zeros(count)
        self._coefficients[0], self._coefficients[_SLOPES] = 1.0, 1.0 / free_tokens  # in a unit that nobody knows yet
        self._fastest = 0.0  # seconds of the fastest pass
        self._sizes = Counter[int]()  # how many passes of each size there were already
        self._recent: list[tuple[TimedPass, float]] = []  # passes since the last fit, with their weights
        self._last: TimedPass | None = None  # the last pass, if costs must be fitted before anybody asks for them again
        if like is not None:
            like._fit()
            like._take_in()
            weight = _TAKEN_OVER * (1 - FADING) / (1 - FADING**like.num_passes)
            self._products, self._sums = weight * like._products, weight * like._sums
            self._coefficients, self._fastest = like._coefficients, like._fastest
        self._curve: list[float] | None = None  # what 0, 1, 2, ... tokens cost, but for what follows their steps

    def seconds(self, tokens: Sequence[int], *, rows: int, cached: int) -> list[float]:
        """Return the seconds of passes of these numbers of `tokens`, ascending, over `rows` with `cached` positions together.
        None is of a prompt, and rows have about as many tokens each. Before the first pass, in any unit."""
        self._fit()
        per_output, per_row, per_cached, *_ = self._coefficients[-_OTHERS:].tolist()
        slope = float(self._coefficients[len(KNOTS)]) + per_output
        if self._curve is None:  # asked for every pass, and of many sizes: so it is computed once for each fit
            outputs = per_output * np.arange(len(_OF_TOKENS))
            self._curve = (_OF_TOKENS @ self._coefficients[:-_OTHERS] + outputs).tolist()
        curve, last = self._curve, KNOTS[-1]
        same, least = per_row * rows + per_cached * cached / MOST_CACHED, _LEAST * self._fastest
        if tokens[-1] <= last and curve[0] + same >= least:  # as a rule
            return [curve[each] + same for each in tokens]
        return [max(least, curve[min(each, last)] + slope * max(0, each - last) + same) for each in tokens]

    def extras(self) -> tuple[float, float]:
        """Return what they take longer for each 1 of `unevenness`, and where any row is fed a block, its tokens apart."""
        self._fit()
        uneven, block = self._coefficients[-2:].tolist()
        return uneven, block

    def learn(self, timed: TimedPass) -> None:
        """Take the time of a pass into account: soon, and at once if its size is new and the time is not what was expected."""
        size = -(-timed.tokens // _OF_A_SIZE)
        weight = (1.0 if self._sizes[size] else _FIRST_OF_A_SIZE) * (_WITH_PROMPTS if timed.prompts else 1.0)
        is_of_prompts = timed.prompts > max(0, timed.tokens - _OF_A_SIZE)  # but for what fills it up
        if is_of_prompts and self.num_passes == 0:  # prompts alone say nothing of what a pass takes for being one
            self._recent = [*self._recent[1 - _MOST :], (timed, weight)]
            return
        self._sizes[size] += 1
        surprises = self._sizes[size] <= _NEW and self._surprises(timed)
        self._recent.append((timed, weight))
        self._fastest = timed.seconds if self.num_passes == 0 else min(self._fastest, timed.seconds)
        self.num_passes += 1
        if surprises or len(self._recent) >= min(self.num_passes // _SHARE, _MOST):
            self._last = timed

    def _fit(self) -> None:
        if self._last is None:
            return
        timed, self._last = self._last, None
        self._take_in()
        same = np.append(_of_tokens(1), (1, timed.rows, timed.cached / MOST_CACHED, False, False))
        prior = (self._prior - np.outer(self._of_same, same)) / self._fastest
        products = self._products + PRIOR * prior.T @ prior
        self._coefficients, self._curve = _non_negative(products, self._sums, fallback=timed.seconds), None

    def _surprises(self, timed: TimedPass) -> bool:
        expected = self.seconds([timed.tokens], rows=timed.rows, cached=timed.cached)[0]
        uneven, block = self.extras()
        expected += uneven * timed.uneven + block * timed.has_block
        return not expected / _SURPRISE < timed.seconds < expected * _SURPRISE

    def _take_in(self) -> None:
        count = len(self._recent)
        table = np.empty((count, len(self._sums)))
        for row, (timed, _) in enumerate(self._recent):
            outputs, cached = timed.tokens - timed.prompts, timed.cached / MOST_CACHED
            table[row, :-_OTHERS] = _of_tokens(timed.tokens)
            table[row, -_OTHERS:] = outputs, timed.rows, cached, timed.uneven, timed.has_block
            table[row] /= timed.seconds
        kept = FADING ** np.arange(count)[::-1]
        weighted = table * (kept * [weight for _, weight in self._recent])[:, None]
        self._products = FADING**count * self._products + weighted.T @ table
        self._sums = FADING**count * self._sums + weighted.sum(axis=0)
        self._recent = []


_TAKEN_OVER = 2.0  # observations that those of other passes count for together
# What a pass takes at least, of the fastest one: a few uneven times may all be put down to what a plain pass hasn't
_LEAST = 0.1
_OF_A_SIZE, _FIRST_OF_A_SIZE = 8, 0.25  # tokens, and what the first pass of a size counts
_WITH_PROMPTS = 0.25  # what a pass counts that prompts are in: their tokens need other attention
_SHARE, _MOST = 4, 32  # costs are fitted once a quarter as many passes wait for it as there were, or so many
_NEW, _SURPRISE = 4, 1.25  # passes of a size that are new, and how many times as long or short as expected surprises


_SLOPES = slice(1, 1 + len(KNOTS))
_OTHERS = 5  # coefficients behind those of tokens: per output, row and unit of the cache, of uneven rows, of blocks


def _of_tokens(tokens: int) -> np.ndarray:
    """Return [1 + segments + steps], what the coefficients are multiplied with that depend on a pass's tokens."""
    found: np.ndarray = _OF_TOKENS[min(tokens, KNOTS[-1])]
    if tokens > KNOTS[-1]:
        found = found.copy()
        found[len(KNOTS)] += tokens - KNOTS[-1]
    return found


def _table() -> np.ndarray:
    tokens, starts = np.arange(KNOTS[-1] + 1)[:, None], np.asarray(KNOTS)
    inside = np.clip(tokens - starts, 0, np.append(np.diff(starts), np.inf))
    return np.concatenate([np.ones_like(tokens), inside, tokens > np.asarray(STEPS)], axis=1)


_OF_TOKENS = _table()
"""[tokens, 1 + segments + steps], for all numbers of tokens up to the last of `KNOTS`: every pass needs some."""


def _prior(free_tokens: float) -> tuple[np.ndarray, np.ndarray]:
    """Return [n, segments + steps + 6] and [n]: products of coefficients, and what they are a priori, as parts of all that does
    not depend on tokens. Each segment's slope is what makes `free_tokens` more cost as much as that, so is that of rows, and a
    few units of the cache cost as much; there are no steps; outputs, uneven lengths and blocks cost nothing; and each segment
    is like the next."""
    segments, steps = len(KNOTS), len(STEPS)
    count = 1 + segments + steps + _OTHERS
    ends = np.asarray([*KNOTS[1:], 2 * KNOTS[-1]], dtype=float)
    parts = ends / (1 + ends / free_tokens)
    own = np.diag([0.0, *parts, *[1.0] * steps, free_tokens, *[1.0] * (_OTHERS - 1)])[1:]
    alike = np.zeros((segments - 1, count))
    between = np.arange(segments - 1)
    alike[between, 1 + between], alike[between, 2 + between] = -parts[:-1], parts[:-1]
    others = [0.0, 1 / free_tokens, 1 / _FREE_CACHED, 0.0, 0.0]
    of_same = np.asarray([*parts / free_tokens, *[0.0] * steps, *others, *[0.0] * len(alike)])
    return np.concatenate([own, alike]), of_same


_FREE_CACHED = 4.0


def _non_negative(products: np.ndarray, sums: np.ndarray, *, fallback: float) -> np.ndarray:
    """Return x >= 0 that nearly minimises x P x / 2 - s x: coefficients that would be negative are 0, one after another."""
    free = np.ones(len(sums), dtype=bool)
    found = np.zeros(len(sums))
    scale = np.sqrt(np.diag(products))
    ridge = 1e-9 * np.diag(scale**2 + 1e-12)
    while free.any():
        solved = np.linalg.solve((products + ridge)[np.ix_(free, free)], sums[free])
        if (solved >= 0).all():
            found[free] = solved
            break
        free[np.flatnonzero(free)[np.argmin(solved * scale[free])]] = False
    if not found.any():
        found[0] = fallback
    return found


@dataclass
class Gained:
    """Hold what recent passes gave: their tokens, and those that plain passes would have given in the same time; the rows of
    these that had a draft, their tokens, and how many drafted places they checked; how many were right, and how many should
    have been. `last`: how many plain passes the last one cost that was decided, trials left out."""

    gained: float
    spent: float
    drafts: float
    drafts_gained: float
    checked: float = 0.0
    right: float = 0.0
    hoped: float = 0.0
    last: float = 1.0

    @property
    def trust(self) -> float:
        """Return what to multiply chances with. What is checked was chosen for its chance, so that chances which are too high
        by accident are chosen most: the more rows there are, the more so."""
        return min(1.0, (self.right + _HOPED) / (self.hoped + _HOPED))

    def fade(self) -> None:
        """Let all of it count less."""
        for name in ("gained", "spent", "drafts", "drafts_gained", "checked", "right", "hoped"):
            setattr(self, name, _FADING * getattr(self, name))

    def forget(self) -> None:
        """Let trust return, as a pass without drafts says nothing of it."""
        self.right, self.hoped = _FORGETTING * self.right, _FORGETTING * self.hoped


_HOPED = 8.0  # drafted tokens: what full trust is worth a priori
_FADING = 0.98  # of what is known of passes, after one more
_FORGETTING = 0.93  # of trust, after a pass without drafts


@dataclass
class Rests:
    """Hold what was decided lately for passes of one kind over about as many rows.

    To decide, and to look for drafts that are refused, takes time too. So where many rows were decided for alike, one after
    another, some passes do the same without a decision.
    """

    refused: int = 0  # rows whose drafts were not worth their cost, since the last one that was
    taken: int = 0  # rows that took all that they were offered, lately, less those that did not, which count more
    # Where passes have padding: how many tokens of a row the first of a run of passes had that are all about as wide, how many
    # rows were decided for since, and whether any was fed a block. With copies alone, what pays differs from pass to pass
    width: int = 0
    alike: int = 0
    has_blocks: bool = False
    rest: int = 0  # how many passes follow without a decision

    def noted(self, chosen: Sequence[DraftChoice], offered: Sequence[DraftChoice], *, is_padded: bool) -> int:
        """Take a decision into account. Return how many passes follow without another one."""
        some = sum(bool(each.tokens) for each in offered)
        self.refused = 0 if any(each.tokens for each in chosen) else self.refused + some
        whole = sum(choice == offer for choice, offer in zip(chosen, offered, strict=True) if offer.tokens)
        self.taken = min(_TAKEN, max(0, self.taken + whole - _ODD * (some - whole)))
        # Rows of a batch pay for each other's blocks: what all of them took does not pay once some drafts are wrong
        if is_padded and any(each.fed for each in offered):
            self.taken = 0
        width, has_blocks = 1 + max(each.tokens for each in chosen), any(each.fed for each in chosen)
        if not is_padded or any(each.branches for each in chosen):  # rows differ, or there is more than may be repeated
            self.alike = 0
        elif width <= _ONE_WIDTH * self.width and self.width <= _ONE_WIDTH * width:
            self.alike, self.has_blocks = self.alike + some, self.has_blocks or has_blocks
        else:
            self.alike, self.has_blocks, self.width = some, has_blocks, width
        if self.refused >= _ROWS:  # the longer nothing was worth it, the longer nobody asks
            self.rest = min(self.refused // _MORE_REFUSED, _LONGEST_REFUSAL)
        elif self.taken >= _TAKEN or self._is_steady:
            self.rest = min(2 * max(1, self.rest) + 1, _LONGEST_REST)
        else:
            self.rest = 0
        return self.rest

    def repeated(self, offered: Sequence[DraftChoice]) -> list[DraftChoice]:
        """Return what rows are fed of what they are `offered` in such a pass."""
        if not self._is_steady:
            return list(offered)
        room = self.width - 1
        pairs = [(min(each.drafted, room), min(each.fed, room - min(each.drafted, room))) for each in offered]
        return [DraftChoice(drafted, fed if fed > 1 else 0) for drafted, fed in pairs]  # one token drafts nothing

    @property
    def _is_steady(self) -> bool:
        return self.has_blocks and self.alike >= _ROWS


# Rows that all refused what they were offered, or were in passes of about one width, before passes rest
_ROWS = 64
_TAKEN, _ODD = 32, 9  # rows that took nearly all, before passes rest; so many that do make up for one that does not
_ONE_WIDTH = 1.25  # times as wide as another one may a pass be that is taken to be like it
_LONGEST_REST = 7  # passes that follow without a decision; the first time about half as many
# Where drafts are refused: rows that make the next rest a pass longer, and the longest one. Texts differ in how often a good
# draft comes along, and a rest may miss it
_MORE_REFUSED, _LONGEST_REFUSAL = 20, 15


class PassClock:
    """Time passes: on a CPU by a clock, on other devices by events that the device records between its operations. These are
    read when they have been recorded, a pass or more later."""

    def __init__(self) -> None:
        self._started: float = 0.0
        self._event: torch.Event | None = None
        self._pending: deque[tuple[torch.Event, torch.Event, TimedPass]] = deque()

    def start(self, device: torch.device) -> None:
        """Begin to time a pass."""
        self._event = None if device.type == "cpu" else _recorded(device)
        self._started = time.perf_counter()

    def stop(self, device: torch.device, timed: TimedPass) -> list[TimedPass]:
        """End it. Return the passes whose time is known now."""
        if self._event is None:
            return [timed._replace(seconds=time.perf_counter() - self._started)]
        self._pending.append((self._event, _recorded(device), timed))
        self._event, found = None, []
        while self._pending and self._pending[0][1].query():
            start, end, earlier = self._pending.popleft()
            found.append(earlier._replace(seconds=start.elapsed_time(end) / 1e3))
        return found


def _recorded(device: torch.device) -> torch.Event:
    event = torch.Event(device=device, enable_timing=True)
    event.record()
    return event
