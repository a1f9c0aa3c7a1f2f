"""Estimate what drafts may gain, and choose by it how much each row drafts.

Knows kinds, chances, costs and numbers of tokens. Knows nothing of models. A kind says where a drafted token comes from: the
model, with its confidence; or a text, with how many tokens match there. How likely the token is to be right follows from what
became of earlier ones of its kind.

A pass over one token of each row gives one token of each. A drafted place that is checked too gives one more if it and all
before it are right. A future block that is fed gives the next draft, which counts if all that is checked in this pass is
right. Each of them is taken if it brings more tokens than plain passes, and what is gained already, would bring in the
seconds that it costs: `rate` times its seconds.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import accumulate, pairwise, repeat
from math import exp, sqrt
from operator import mul
from statistics import NormalDist
from typing import NamedTuple

import torch
from torch import Tensor

from setblock.model.protocol.draft_text import LEVELS

CONFIDENCES = (0.15, 0.35, 0.6, 0.8, 0.92, 0.98, 0.995)
"""Bounds between the kinds of the model's own drafts: the probability of the token that was most likely."""

LONGEST_COPY = 8
"""Tokens: copies that match so many or more are of one kind."""

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
"""The chance of each kind, before anything was seen."""

WEIGHT = 6.0
"""Observations that a prior is worth."""


class Chances:
    """Hold the chance of each kind. Those of a row start from those of its model."""

    def __init__(self, parent: "Chances | None" = None, *, memory: float) -> None:
        """Begin without observations. `memory`: how many of a kind count; older ones fade."""
        self._parent, self._memory = parent, memory
        self._right, self._all = [0.0] * NUM_KINDS, [0.0] * NUM_KINDS

    def __getitem__(self, kind: int) -> float:
        """Return the chance that a token of this kind is right, where all before it are."""
        prior = PRIOR[kind] if self._parent is None else self._parent[kind]
        return (self._right[kind] + WEIGHT * prior) / (self._all[kind] + WEIGHT)

    def learn(self, kinds: Sequence[int], *, right: int) -> None:
        """Take a checked draft into account: `right` of its tokens were, and the one behind them was not, if there is one."""
        were_right, seen, memory = self._right, self._all, self._memory
        for place, kind in enumerate(kinds[: right + 1]):
            were_right[kind] += place < right
            seen[kind] = count = seen[kind] + 1
            if count > memory:
                were_right[kind] *= memory / count
                seen[kind] = memory
        if self._parent is not None:
            self._parent.learn(kinds, right=right)

    def fade(self, kept: float) -> None:
        """Let all that was seen count less, so that what is not tried any more will be tried again."""
        self._right = [kept * each for each in self._right]
        self._all = [kept * each for each in self._all]

    def reached(self, kinds: Sequence[int]) -> list[float]:
        """Return for each token of a draft how likely it and all before it are right."""
        chances = {kind: self[kind] for kind in set(kinds)}
        return list(accumulate((chances[kind] for kind in kinds), mul))


USUAL = 0.9
"""The chance that a drafted token is right where those before it are: rather too much, so that drafts are tried."""


class ExpectedDraft:
    """Hold how good a draft may be: for each place, how likely it and all before it are right. It is the mean over recent
    drafts, and before there are any, that of the model's other rows, or what is usual."""

    def __init__(self, parent: "ExpectedDraft | None" = None, *, memory: float, usual: float = USUAL) -> None:
        """Begin without drafts. `memory`: how many of them count. `usual`: a priori, the chance that a token is right where
        those before it are."""
        self._parent, self._memory, self._usual = parent, memory, usual
        self._means: list[float] = []
        self._counts: list[float] = []
        self._known: list[float] = []  # without a parent: what `of` gave; empty where that has changed

    @property
    def is_new(self) -> bool:
        """Return whether no draft was taken into account yet."""
        return not self._means

    @property
    def is_unsure(self) -> bool:
        """Return whether few drafts were taken into account lately: what is usual says more."""
        return not self._counts or self._counts[0] < WEIGHT

    def learn(self, reached: Sequence[float]) -> None:
        """Take a draft into account: `Chances.reached` of it, 0 where nothing was drafted."""
        means, counts, memory, self._known = self._means, self._counts, self._memory, []
        new = [0.0] * (len(reached) - len(means))
        means += new
        counts += new
        for place, value in enumerate(reached):
            counts[place] = count = counts[place] + 1
            means[place] += (value - means[place]) / (count if count < memory else memory)
        if self._parent is not None:
            self._parent.learn(reached)

    def fade(self, kept: float) -> None:
        """Let all that was seen count less, as in `Chances.fade`."""
        self._counts, self._known = [kept * each for each in self._counts], []

    def of(self, length: int) -> list[float]:
        """Return the expected `Chances.reached` of a draft of `length` tokens. Places that were never drafted continue the
        trend of those before."""
        if self._parent is not None and self.is_new:
            return self._parent.of(length)
        if self._parent is None and len(self._known) == length:  # each row asks
            return self._known
        of_others = None if self._parent is None else self._parent.of(length)
        found, last = list[float](), 1.0
        for place in range(length):
            trend = last ** ((place + 1) / place) if place else self._usual
            guess = trend if of_others is None else of_others[place]
            if place < len(self._means):
                count = self._counts[place]
                guess = (count * self._means[place] + WEIGHT * guess) / (count + WEIGHT)
            last = guess if guess < last else last
            found.append(last)
        if self._parent is None:
            self._known = found
        return found


def kinds_of(confidence: Tensor, bounds: Tensor) -> Tensor:
    """Return [B, k] int64, the kinds of tokens that the model drafted with a `confidence` [B, k] float32: the probability of
    the most likely token. `bounds`: `CONFIDENCES` as a tensor."""
    return torch.bucketize(confidence.contiguous(), bounds, right=True)


def copied_kinds(matched: Tensor, size: int) -> Tensor:
    """Return [B, size] int64, the kinds of the places of drafts that are copied where `matched` [B] tokens match. Where the
    first places are right, more tokens match at those behind them."""
    places = torch.arange(size, device=matched.device)
    return COPIED + (matched[:, None] + places - 2).clamp(0, LONGEST_COPY - 1)


def kinds_of_copy(first: int, count: int) -> list[int]:
    """Return the kinds of the first places of a copy, given that of the first one. Empty if that is no copy."""
    if first < ELSEWHERE:
        return [min(first + place, ELSEWHERE - 1) for place in range(count)] if first >= COPIED else []
    return [first] * count


Seconds = Callable[[Sequence[int]], list[float]]
"""What passes of these numbers of tokens cost."""


class Prospects(NamedTuple):
    """Hold what a row may gain."""

    reached: Sequence[float]  # of each drafted place, how likely it and all before it are right; not increasing
    # Of the draft that a block as large as may be fed would give, the same less what copies would give without it; empty where
    # none may be fed
    expected: Sequence[float]
    size: int  # tokens of that block
    # Whether a pass that feeds the block gives no token itself, since the runtime commits in separate passes
    waits: bool = False
    branches: int = 0  # how many there may be
    passes: float = 0.0  # how many more the row will need, about; 0 where another row takes its place then
    saved: float = 0.0  # of its tokens, how many would need no pass of their own if all drafts were like this one
    worth: float = 1.0  # of one of its tokens, in tokens

    def trusted(self, trust: float, worth: float = 1.0) -> "Prospects":
        """Return them with all chances times `trust`, and with `worth`."""
        reached, expected = ([trust * each for each in chances] for chances in (self.reached, self.expected))
        return self._replace(reached=reached, expected=expected, worth=worth)

    def worths(self, reached: Sequence[float], usual: "Usual") -> list[float]:
        """Return the worth of each place of a draft of the row, in tokens.

        A right token is worth a part of a pass. A place that is not checked in this pass can be drafted again. So
        where a row has a good draft, and passes give it more tokens than usual, a token is worth a smaller part of a pass than
        usual.
        """
        whole = int(usual.checked)
        tokens = 1.0 + sum(reached[:whole]) + (usual.checked - whole) * sum(reached[whole : whole + 1])
        worth = self.worth * min(1.0, usual.tokens / tokens)
        return [worth * each for each in reached]


def row_worths(passes: Sequence[float], *, saved: float, fixed: float, own: float) -> list[float]:
    """Return the worth of a token of each row, in tokens.

    It saves its row's part of one pass. If nobody takes the place of a row that ends, it saves the rest of the pass only if no
    other row runs for longer. So tokens of rows that end soon are worth less then, and those of rows that end last more.

    Where drafts save each of n rows s passes, give or take the square root of s, the last row saves about s - z sqrt(s). Here z
    is how many standard deviations the greatest of n lies above the mean. One more of each saves 1 - z / (2 sqrt(s)).

    Args:
        passes: as in `Prospects`.
        saved: s, about.
        fixed, own: what a pass costs without any row, and for each one.
    """
    count, longest, by_chance = len(passes), max(passes), max(1.0, sqrt(saved))
    ends_last = [exp((each - longest) / by_chance) for each in passes]
    mean, of_all = fixed / count + own, sum(ends_last)
    if longest:
        above = NormalDist().inv_cdf((count - 0.375) / (count + 0.25))  # Blom's approximation
        fixed *= max(0.0, 1.0 - above / (2.0 * by_chance))
    return [min(_MOST_WORTH, (own + fixed * each / of_all) / mean) for each in ends_last]


_MOST_WORTH = 2.0  # tokens: which row ends last is a guess


class Usual(NamedTuple):
    """Hold what a pass usually gives a row that has a draft: its tokens, and the drafted places that it checks."""

    tokens: float = 1.0
    checked: float = 0.0


class DraftChoice(NamedTuple):
    """Hold how many drafted places of a row are checked, how many tokens of its block are fed, and how many branches at the
    first of these places, with their tokens."""

    drafted: int
    fed: int
    branches: int = 0
    branch_size: int = 0

    @property
    def tokens(self) -> int:
        """Return how many tokens are fed besides the next one."""
        return self.drafted + self.fed + self.branches * self.branch_size


class _Item(NamedTuple):
    """Hold more tokens of a row, what they bring, the places of its draft, tokens of its block, or branches, that it has then,
    and how many tokens these are."""

    row: int
    gain: float
    tokens: int
    total: int
    upto: int


def choose_drafts(
    rows: Sequence[Prospects],
    seconds: Seconds,
    *,
    uneven: float = 0.0,
    block: float = 0.0,
    others: int,
    rate: float,
    usual: Usual,
) -> list[DraftChoice]:
    """Return what each row is fed in a pass that computes what it is fed, and nothing else.

    Args:
        seconds: what passes cost where all rows are fed as much.
        uneven: what they cost more for each 1 of rows' `unevenness`.
        block: what they cost more where any row is fed a block.
        others: tokens that are fed besides, one of each of these rows included.
        rate: tokens that a second is worth.
        usual: as in `worths`.
    """
    most = sum(len(row.reached) + row.size for row in rows)
    in_branches = sum(row.size * min(row.branches, len(row.reached)) for row in rows)
    cost = [rate * each for each in seconds(range(others, others + most + in_branches + 2))]
    # 1. Drafted places
    places = [
        _Item(index, gain, 1, place, place)
        for index, row in enumerate(rows)
        for place, gain in enumerate(row.worths(row.reached, usual), start=1)
    ]
    drafted = [0] * len(rows)
    for item in _best(places, drafted, cost, rate * uneven):
        drafted[item.row] = item.total
    # 2. Blocks, a part after the other. What a further token costs, in the next pass too, is the mean where all may be fed one
    taken = sum(drafted)
    one_more = (cost[most + 1] - cost[taken]) / (most + 1 - taken)
    parts = [item for index, row in enumerate(rows) for item in _parts(row, index, drafted[index], one_more, usual)]
    fed = [0] * len(rows)
    for item in _best(parts, drafted, cost[taken:], rate * uneven, start=rate * block):
        fed[item.row] = item.total
    # 3. Branches at drafted places
    chosen = [DraftChoice(*choice) for choice in zip(drafted, fed, strict=True)]
    more = [item for index, row in enumerate(rows) for item in _branches(row, index, chosen[index], one_more, usual)]
    lengths, cost = [each.tokens for each in chosen], cost[taken + sum(fed) :]
    for item in _best(more, lengths, cost, rate * uneven, start=0.0 if any(fed) else rate * block):
        chosen[item.row] = chosen[item.row]._replace(branches=item.total, branch_size=item.upto // item.total)
    return chosen


def _best(
    items: Sequence[_Item], lengths: Sequence[int], cost: Sequence[float], uneven: float, *, start: float = 0.0
) -> list[_Item]:
    """Return the items that are worth most: their gain, less the cost of their tokens, of uneven rows, and of any item, which
    is `start`. Each row's are taken from the first on, the best of all rows first: where uneven rows cost more, of all items,
    and of each row's first one, three, seven, ... alone."""
    by_gain = sorted(items, key=lambda item: item.gain / item.tokens, reverse=True)
    orders, may_differ = [by_gain], bool(uneven and items and len(lengths) > 1)
    if may_differ:
        most = max(item.total for item in items)
        orders += [[item for item in by_gain if item.total < 1 << bits] for bits in range(1, most.bit_length())]
    best, taken = 0.0, list[_Item]()
    for order in orders:
        value, tokens = -start, 0
        more = _more_uneven(order, lengths) if may_differ else repeat(0)
        for place, (item, differ) in enumerate(zip(order, more, strict=False), start=1):
            value, tokens = value + item.gain, tokens + item.tokens
            worth = value - (cost[tokens] - cost[0]) - uneven * differ
            if worth > best:
                best, taken = worth, order[:place]
    return taken


def _more_uneven(order: Sequence[_Item], lengths: Sequence[int]) -> Iterator[int]:
    """Yield how much the rows' `unevenness` has grown with each item. `lengths`: of the rows, before the first one."""
    digits = [each.bit_length() for each in lengths]
    rows_of = Counter(digits)
    low, high = min(digits), max(digits)
    before = high - low
    for item in order:
        rows_of[digits[item.row]] -= 1
        digits[item.row] = now = (lengths[item.row] + item.upto).bit_length()
        rows_of[now] += 1
        high = now if now > high else high
        while not rows_of[low]:
            low += 1
        yield high - low - before


def _of_checks(draft: Sequence[float], one_more: float) -> list[float]:
    """Return the gain of the first 0, 1, 2, ... tokens of a draft of these `worths`, those that are worth a check, less its
    cost."""
    return list(accumulate((max(0.0, each - one_more) for each in draft), initial=0.0))


def _parts(row: Prospects, index: int, drafted: int, one_more: float, usual: Usual) -> list[_Item]:
    """Return a block's parts of 2, 4, 8, ... tokens, each with what it adds, the densest first: the upper hull of what they
    bring. A block counts if all that is checked with it is right."""
    if not row.expected:
        return []
    all_right = row.reached[drafted - 1] if drafted else 1.0
    gain, waiting = _of_checks(row.worths(row.expected, usual), one_more), usual.tokens if row.waits else 0.0
    gains = {size: all_right * gain[:size][-1] - waiting for size in block_sizes(row.size)}
    return [_Item(index, gain, size - before, size, size) for before, size, gain in _densest(gains)]


def _branches(row: Prospects, index: int, choice: DraftChoice, one_more: float, usual: Usual) -> list[_Item]:
    """Return branches at the first places of a draft, with what they add, the densest first. One is of use if the draft is
    right up to its place, and wrong there. All are as long as the block, where one is fed, or as gives most for its tokens."""
    most = min(row.branches, choice.drafted)
    if not most or not row.expected:
        return []
    gain = _of_checks(row.worths(row.expected, usual), one_more)
    size = choice.fed or max(block_sizes(row.size), key=lambda size: gain[:size][-1] / size)
    wrong = {count: (1.0 - row.reached[count - 1]) * gain[:size][-1] for count in range(1, most + 1)}
    return [_Item(index, gain, size * (n - before), n, size * n) for before, n, gain in _densest(wrong)]


def block_sizes(most: int) -> list[int]:
    """Return the sizes of a block that are tried: 2, 4, 8, ... and the largest."""
    return sorted({min(1 << power, most) for power in range(1, most.bit_length() + 1)})


def _densest(gains: Mapping[int, float]) -> list[tuple[int, int, float]]:
    """Return steps from 0 up, those that bring most for each first (the upper hull): from how many, to how many, their gain."""
    hull: list[tuple[int, float]] = [(0, 0.0)]
    for size, gain in gains.items():
        while len(hull) > 1 and (gain - hull[-2][1]) * (hull[-1][0] - hull[-2][0]) >= (hull[-1][1] - hull[-2][1]) * (
            size - hull[-2][0]
        ):
            hull.pop()
        hull.append((size, gain))
    return [(before, size, gain - less) for (before, less), (size, gain) in pairwise(hull) if gain > less]
