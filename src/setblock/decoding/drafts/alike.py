"""Choose how much rows draft where a pass computes as many tokens for each of them, padding included.

Knows what `gains` knows.
"""

from collections.abc import Iterable, Sequence
from itertools import accumulate

import numpy as np

from setblock.decoding.drafts.gains import DraftChoice, Prospects, Seconds, Usual, block_sizes


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
    """Return what each row is fed in a pass that computes as many tokens for each row, padding included. `widths`: the numbers
    of tokens of a row that there may be, ascending. `padded_rows`: how many rows the pass computes. The others: as in
    `choose_drafts`."""
    # 1. Drafted places and blocks, for each of the W widths
    ends = np.asarray([*widths, widths[-1] + 1])
    cost = rate * np.asarray(seconds((ends * padded_rows).tolist()))
    one_more = np.diff(cost) / np.diff(ends) / padded_rows
    room = ends[:-1, None] - 1  # [W, 1]
    drafted = np.minimum([len(row.reached) for row in rows], room)  # [W, R]
    fed = np.minimum([row.size for row in rows], room - drafted)
    every, all_right = np.arange(len(rows)), _table([1.0, *row.reached] for row in rows)
    of_draft = _table([0.0, *accumulate(row.worths(row.reached, usual))] for row in rows)[every, drafted]
    of_next = _table(row.worths(row.expected, usual) for row in rows)  # [R, k - 1]
    parts = _of_first(of_next - one_more[:, None, None])  # [W, R, k]
    gains = (
        all_right[every, drafted] * parts[np.arange(len(widths))[:, None], every, (fed - 1).clip(0, of_next.shape[1])]
    )
    of_blocks = gains.sum(axis=1) - rate * block
    best = (of_draft.sum(axis=1) - cost[:-1] + of_blocks.clip(0)).argmax()
    fed = np.where((gains[best] > 0) & (of_blocks[best] > 0), fed[best], 0)
    chosen = [DraftChoice(*choice) for choice in zip(drafted[best].tolist(), fed.tolist(), strict=True)]

    # 2. As many branches as pay where all rows have room for as many, of one size
    most = np.asarray([min(row.branches, n) if row.expected else 0 for row, n in zip(rows, drafted[best], strict=True)])
    if not most.any():
        return chosen
    width = 1 + max(each.tokens for each in chosen)
    sizes, counts = block_sizes(max(row.size for row in rows)), range(1, int(most.max()) + 1)
    pairs = sorted(((count, size) for size in sizes for count in counts), key=lambda pair: pair[0] * pair[1])
    more = [0, 1, *(count * size for count, size in pairs)]
    now, one, *costs = (rate * each for each in seconds([padded_rows * (width + tokens) for tokens in more]))
    start = 0.0 if fed.any() else rate * block
    parts = _of_first(of_next - (one - now) / padded_rows)  # [R, k]
    wrong = {count: (1.0 - all_right[every, np.minimum(count, most)]) * (most > 0) for count in counts}
    most_worth, (count, size) = 0.0, (0, 0)
    for pair, of_pair in zip(pairs, costs, strict=True):
        value = now - of_pair - start + wrong[pair[0]] @ parts[:, min(pair[1], parts.shape[1]) - 1]
        if value > most_worth:
            most_worth, (count, size) = value, pair
    branches = np.minimum(count, most).tolist()
    return [each._replace(branches=n, branch_size=size if n else 0) for each, n in zip(chosen, branches, strict=True)]


def _table(of_rows: Iterable[Sequence[float]]) -> np.ndarray:
    """Return [rows, the most numbers of a row], filled with zeros."""
    numbers = list(of_rows)
    table = np.zeros((len(numbers), max(map(len, numbers))))
    for row, of_row in enumerate(numbers):
        table[row, : len(of_row)] = of_row
    return table


def _of_first(gains: np.ndarray) -> np.ndarray:
    """Return [..., 1 + n], what the first 0, 1, 2, ... of [..., n] bring together where none is less than 0."""
    table = np.zeros((*gains.shape[:-1], 1 + gains.shape[-1]))
    np.cumsum(gains.clip(0), axis=-1, out=table[..., 1:])
    return table
