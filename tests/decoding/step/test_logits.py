"""Reading logits: the fast way to find the greatest is the plain one."""

import torch
from hypothesis import given
from hypothesis import strategies as st

from setblock.decoding.step.logits import most_likely


@given(data=st.data())
def test_the_greatest_of_a_long_vocabulary_is_found_in_pieces(data: st.DataObject) -> None:
    """The first of a tie, also where values are infinite or no numbers, and where the last piece is short."""
    rows, size = data.draw(st.integers(8, 12)), data.draw(st.integers(250, 1100))
    logits = torch.randint(0, 3, (rows, 1, size), generator=torch.Generator().manual_seed(size)).float()
    for value in (torch.inf, -torch.inf, torch.nan, 3.0):
        row, column = data.draw(st.integers(0, rows - 1)), data.draw(st.integers(0, size - 1))
        logits[row, :, column:] = value
    logits[0] = -torch.inf
    plain, fast = most_likely(logits), most_likely(logits, in_pieces=True)
    torch.testing.assert_close(fast.logits, plain.logits, rtol=0, atol=0, equal_nan=True)
    assert fast.token_ids.tolist() == plain.token_ids.tolist()
