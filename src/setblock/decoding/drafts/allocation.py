"""Share a pass among rows: how many drafted tokens of each are checked, and how much of its next block is fed.

Knows gains, costs and numbers of tokens. Knows nothing of where they come from.

A pass over one token of each row gives one token of each. A drafted place that is checked too gives one more if it and all
before it are right. A future block that is fed gives the next draft, which counts if all that is checked in this pass is
right. Each of them is taken if it brings more tokens than plain passes, and what is gained already, would bring in the
seconds that it costs: `rate` times its seconds.
"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

Seconds = Callable[[Sequence[int]], list[float]]
"""What passes of these numbers of tokens cost."""


class Prospects(NamedTuple):
    """Hold what a row may gain.

    Attributes:
        reached: of each drafted place, how likely it and all before it are right; not increasing.
        expected: the same of the draft that a block as large as may be fed would give; empty where none may be fed.
        size: tokens of that block.
        waits: whether a pass that feeds the block gives no token itself, since the runtime commits in separate passes.
    """

    reached: Sequence[float]
    expected: Sequence[float]
    size: int
    waits: bool = False

    def trusted(self, trust: float) -> "Prospects":
        """Return them with all chances times `trust`."""
        return Prospects(
            [trust * each for each in self.reached], [trust * each for each in self.expected], self.size, self.waits
        )


class Share(NamedTuple):
    """Hold a row's share: how many drafted places are checked, and how many tokens of its block are fed."""

    drafted: int
    fed: int


class _Item(NamedTuple):
    gain: float
    tokens: int
    row: int
    fed: int


def shared(rows: Sequence[Prospects], seconds: Seconds, *, others: int, rate: float) -> list[Share]:
    """Return each row's share of a pass that computes what it is fed, and nothing else.

    Args:
        seconds: what passes cost.
        others: tokens that are fed besides, one of each of these rows included.
        rate: tokens that a second is worth.
    """
    most = sum(len(row.reached) + row.size for row in rows)
    cost = [rate * each for each in seconds(range(others, others + most + 2))]
    # 1. Drafted places: the best first
    places = sorted(((gain, index) for index, row in enumerate(rows) for gain in row.reached), key=_gain, reverse=True)
    taken = _best([gain for gain, _ in places], range(1, len(places) + 1), cost)
    drafted = [0] * len(rows)
    for _, index in places[:taken]:
        drafted[index] += 1
    # 2. Blocks, a part after the other. What a further token costs, in the next pass too, is the mean where all may be fed one
    one_more = (cost[-1] - cost[taken]) / (len(cost) - 1 - taken)
    items = [
        item
        for index, row in enumerate(rows)
        for item in _parts(row, index, drafted[index], one_more, cost[0] / others)
    ]
    items.sort(key=_density, reverse=True)
    tokens = list(accumulate(each.tokens for each in items))
    fed = [0] * len(rows)
    for item in items[: _best([item.gain for item in items], tokens, cost[taken:])]:
        fed[item.row] = max(fed[item.row], item.fed)
    return [Share(*share) for share in zip(drafted, fed, strict=True)]


def shared_alike(
    rows: Sequence[Prospects], seconds: Seconds, *, widths: Sequence[int], padded_rows: int, rate: float
) -> list[Share]:
    """Return each row's share of a pass that computes as many tokens for each row, padding included.

    Args:
        widths: the numbers of tokens of a row that there may be, ascending.
        padded_rows: how many rows the pass computes.
        seconds, rate: as in `shared`.
    """
    cost = [rate * each for each in seconds([width * padded_rows for width in (*widths, widths[-1] + 1)])]
    best, found = float("-inf"), [Share(0, 0)] * len(rows)
    for place, width in enumerate(widths):
        one_more = (cost[place + 1] - cost[place]) / ((*widths, widths[-1] + 1)[place + 1] - width) / padded_rows
        value, shares = -cost[place], []
        for row in rows:
            drafted = min(len(row.reached), width - 1)
            fed = min(row.size, width - 1 - drafted)
            gain = _gain_of_block(row, drafted, fed, one_more, 0.0) if fed > 1 else 0.0
            value += sum(row.reached[:drafted]) + max(0.0, gain)
            shares.append(Share(drafted, fed if gain > 0 else 0))
        if value > best:
            best, found = value, shares
    return found


def _gain(place: tuple[float, int]) -> float:
    return place[0]


def _density(item: _Item) -> float:
    return item.gain / item.tokens


def _best(gains: Sequence[float], tokens: Sequence[int], cost: Sequence[float]) -> int:
    """Return how many of the things, from the first on, are worth most: what they gain, less what they cost together."""
    best = value = 0.0
    taken = 0
    for count, (gain, total) in enumerate(zip(gains, tokens, strict=True), start=1):
        value += gain
        if value - (cost[total] - cost[0]) > best:
            best, taken = value - (cost[total] - cost[0]), count
    return taken


def _gain_of_block(row: Prospects, drafted: int, fed: int, one_more: float, waiting: float) -> float:
    """Return what a block of `fed` tokens brings: the tokens of the draft that are worth being checked, less what that
    costs."""
    all_right = row.reached[drafted - 1] if drafted else 1.0
    draft = sum(max(0.0, chance - one_more) for chance in row.expected[: fed - 1])
    return all_right * draft - (waiting if row.waits else 0.0)


def _parts(row: Prospects, index: int, drafted: int, one_more: float, waiting: float) -> list[_Item]:
    """Return a block's parts of 2, 4, 8, ... tokens, each with what it adds, the densest first: the upper hull of what they
    bring."""
    if not row.expected:
        return []
    sizes = sorted({min(1 << power, row.size) for power in range(1, row.size.bit_length() + 1)})
    hull: list[tuple[int, float]] = [(0, 0.0)]
    for size in sizes:
        gain = _gain_of_block(row, drafted, size, one_more, waiting)
        while len(hull) > 1 and (gain - hull[-2][1]) * (hull[-1][0] - hull[-2][0]) >= (hull[-1][1] - hull[-2][1]) * (
            size - hull[-2][0]
        ):
            hull.pop()
        hull.append((size, gain))
    return [
        _Item(gain - before_gain, size - before, index, size)
        for (before, before_gain), (size, gain) in pairwise(hull)
        if gain > before_gain
    ]
