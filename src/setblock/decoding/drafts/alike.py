"""Choose how much rows draft where a pass computes as many tokens for each of them, padding included.

Knows what `gains` knows.
"""

from collections.abc import Sequence
from math import prod

from setblock.decoding.drafts.gains import (
    DraftChoice,
    Prospects,
    Seconds,
    Usual,
    block_sizes,
    gain_of_block,
    gain_of_branches,
    worths,
)


def choose_drafts_alike(
    rows: Sequence[Prospects],
    seconds: Seconds,
    *,
    block: float = 0.0,
    widths: Sequence[int],
    padded_rows: int,
    rate: float,
    usual: Usual,
) -> list[DraftChoice]:
    """Return what each row is fed in a pass that computes as many tokens for each row, padding included.

    Args:
        widths: the numbers of tokens of a row that there may be, ascending.
        padded_rows: how many rows the pass computes.
        seconds, block, rate, usual: as in `choose_drafts`.
    """
    cost = [rate * each for each in seconds([width * padded_rows for width in (*widths, widths[-1] + 1)])]
    worth = [(worths(row.reached, usual), worths(row.expected, usual)) for row in rows]
    best, found = float("-inf"), [DraftChoice(0, 0)] * len(rows)
    for place, width in enumerate(widths):
        one_more = (cost[place + 1] - cost[place]) / ((*widths, widths[-1] + 1)[place + 1] - width) / padded_rows
        value, of_blocks, chosen = -cost[place], -rate * block, []
        for row, (of_draft, of_next) in zip(rows, worth, strict=True):
            drafted = min(len(row.reached), width - 1)
            fed = min(row.size, width - 1 - drafted)
            gain = gain_of_block(row, drafted, of_next[: fed - 1], one_more) if fed > 1 else 0.0
            value, of_blocks = value + sum(of_draft[:drafted]), of_blocks + max(0.0, gain)
            chosen.append(DraftChoice(drafted, fed if gain > 0 else 0))
        if of_blocks > 0:
            value += of_blocks
        else:
            chosen = [choice._replace(fed=0) for choice in chosen]
        if value > best:
            best, found = value, chosen
    return _with_branches(rows, found, seconds, block=block, padded_rows=padded_rows, rate=rate, usual=usual)


def _with_branches(
    rows: Sequence[Prospects],
    chosen: list[DraftChoice],
    seconds: Seconds,
    *,
    block: float,
    padded_rows: int,
    rate: float,
    usual: Usual,
) -> list[DraftChoice]:
    """Return the choices with as many branches as pay where all rows have room for as many, of one size."""
    places = [min(row.branches, each.drafted) if row.expected else 0 for row, each in zip(rows, chosen, strict=True)]
    if not any(places):
        return chosen
    width = 1 + max(each.tokens for each in chosen)
    pairs = [
        (count, size) for size in block_sizes(max(row.size for row in rows)) for count in range(1, max(places) + 1)
    ]
    pairs.sort(key=lambda pair: pair[0] * pair[1])
    now, one, *costs = [rate * each for each in seconds([padded_rows * (width + n) for n in (0, 1, *map(prod, pairs))])]
    start = 0.0 if any(each.fed for each in chosen) else rate * block
    drafts = [worths(row.expected, usual) for row in rows]
    best, found = 0.0, (0, 0)
    for (count, size), cost in zip(pairs, costs, strict=True):
        value = now - cost - start
        for row, draft, most in zip(rows, drafts, places, strict=True):
            if most:
                value += gain_of_branches(row, min(count, most), draft[: size - 1], (one - now) / padded_rows)
        if value > best:
            best, found = value, (count, size)
    count, size = found
    return [
        each._replace(branches=min(count, most), branch_size=size if min(count, most) else 0)
        for each, most in zip(chosen, places, strict=True)
    ]
