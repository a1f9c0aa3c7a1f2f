"""The order of rows: Accelerate's own, from an array in place of a list."""

import pytest
from accelerate.data_loader import SeedableRandomSampler

from setblock.data.corpus.corpus_rows import RowOrder


@pytest.mark.parametrize("rows", [1, 7, 4096, 10_000])
def test_the_order_is_accelerates(rows: int) -> None:
    ours, theirs = RowOrder(rows, seed=5), SeedableRandomSampler(range(rows), data_seed=5)
    orders = []
    for epoch in (0, 1, 3):
        ours.set_epoch(epoch)
        theirs.set_epoch(epoch)
        orders.append(list(ours))
        assert orders[-1] == list(theirs)
        assert orders[-1] == list(ours), "the same each time"
        assert sorted(orders[-1]) == list(range(rows))
    assert len(ours) == rows
    assert rows == 1 or len({tuple(order) for order in orders}) == 3
