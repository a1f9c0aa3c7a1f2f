"""Passes that repeat the last decisions, where these were alike."""

import pytest

from given_costs import GivenControl, GivenCosts, by_token, decided, free, gain_of
from setblock.decoding.drafts.costs import Rests
from setblock.decoding.drafts.gains import COPIED, DraftChoice, Prospects


def test_where_all_drafts_are_refused_passes_follow_that_nobody_drafts_for() -> None:
    dear, kinds = GivenControl(GivenCosts(by_token)), [COPIED]
    for _ in range(50):
        assert decided(dear, 32, size=0) == [DraftChoice(0, 0)] * 32
    assert not dear.resting  # nothing was offered
    for _ in range(2):
        assert not dear.resting
        assert decided(dear, 32, size=0, kinds=kinds) == [DraftChoice(0, 0)] * 32
    passes, gained, spent = 0, dear._gain_here.gained, dear._gain_here.spent
    rows = [dear.new_row() for _ in range(32)]
    rows[0].pace = 3.0
    while dear.resting:
        assert not dear.looks
        assert dear.rest(rows, []) == [DraftChoice(0, 0)] * 32
        passes += 1
    assert passes > 1
    assert dear.looks
    assert rows[0].pace < 2.9
    # Each row got a token, and took the time of one
    after = dear._gain_here
    assert (after.gained, after.spent) == pytest.approx((gained + 32 * passes, spent + 32 * passes))
    dear.costs = GivenCosts(free)
    assert decided(dear, 32, size=0, kinds=kinds) == [DraftChoice(1, 0)] * 32
    assert dear.resting  # so many took all that the next passes do, too
    assert dear.looks
    assert gain_of(dear) < 1.1  # passes without drafts count as what they are


def test_the_longer_drafts_are_refused_the_longer_passes_rest() -> None:
    """A text of which drafts are good now and then is asked again soon."""
    rests, offered, nothing = Rests(), [DraftChoice(3, 0)] * 20, [DraftChoice(0, 0)] * 20
    found = [rests.noted(nothing, offered, is_padded=True) for _ in range(40)]
    assert found[:8] == [0, 0, 0, 4, 5, 6, 7, 8]
    assert found[-1] == 15
    one = [DraftChoice(3, 0), *nothing[1:]]
    assert rests.noted(one, offered, is_padded=True) == 0
    assert rests.noted(nothing, offered, is_padded=True) == 0


def test_where_all_drafts_are_taken_passes_follow_that_take_them_undecided() -> None:
    control, kinds = GivenControl(GivenCosts(free)), [COPIED] * 3
    offered, rows = [DraftChoice(3, 4)] * 16, [control.new_row()] * 16
    for _ in range(2):
        assert not control.resting
        assert decided(control, 16, size=4, kinds=kinds) == offered
    before = control._gain_here.spent
    passes = 0
    while control.resting:
        assert control.looks
        assert control.rest(rows, offered) == offered
        passes += 1
    assert passes > 1
    # Each cost as much as the last one: here, what a plain pass does
    assert control._gain_here.spent == before + 16 * passes
    control.costs = GivenCosts(by_token)
    assert decided(control, 16, size=4, kinds=kinds) != offered
    assert not control.resting


@pytest.mark.parametrize(("odd", "rests"), [(0, True), (1, True), (8, False)])
def test_passes_are_undecided_where_nearly_all_rows_take_all(odd: int, rests: bool) -> None:
    """A row in 32 whose draft is bad does not make the others wait for decisions; eight such rows do."""
    control = GivenControl(GivenCosts(lambda tokens, rows: 4 + 0.3 * tokens))
    bad, good = Prospects([0.01], (), 0), Prospects([0.999], (), 0)
    for _ in range(4):
        if not control.resting:
            rows = [bad] * odd + [good] * (32 - odd)
            chosen = control.decide(rows, "any", others=0, prompts=0, padded_rows=32, cached=0)
            assert [each.drafted for each in chosen] == [0] * odd + [1] * (32 - odd)
    assert bool(control.resting) == rests


def test_passes_of_another_kind_or_load_are_decided_for() -> None:
    """The last row of a batch takes all. That says nothing of the next batch."""
    control, kinds = GivenControl(GivenCosts(free)), [COPIED]
    for _ in range(32):
        decided(control, 1, size=0, kinds=kinds)
    assert control.rests("any", rows=1)
    assert not control.rests("any", rows=32)
    assert not control.resting
    for _ in range(4):
        decided(control, 32, size=0, kinds=kinds)
    assert control.rests("any", rows=30)
    assert not control.rests("other", rows=32)


@pytest.mark.parametrize("is_padded", [True, False])
def test_nothing_rests_on_a_trial(is_padded: bool) -> None:
    """A trial costs what no draft may cost. So one pass that all rows of a batch are tried in must not be repeated."""
    control = GivenControl(GivenCosts(lambda tokens, rows: 4 + 0.27 * tokens))
    rows = [control.new_row().prospects([], 16, waits=False) for _ in range(70)]
    widths = [1, 2, 4, 8, 16, 17] if is_padded else None
    chosen = control.decide(rows, "any", others=0, prompts=0, padded_rows=70, cached=0, widths=widths)
    assert chosen[0] == DraftChoice(0, 16)
    assert not control.resting
    assert control.looks


def fed(rests: Rests, *chosen: DraftChoice, rows: int = 20, is_padded: bool = True) -> int:
    """Decide for rows that are offered a whole draft and a block. Return how many passes follow the last decision."""
    offered, rest = [DraftChoice(15, 16)] * rows, 0
    for each in chosen:
        assert not rest
        rest = rests.noted([each] * rows, offered, is_padded=is_padded)
    return rest


def test_passes_of_about_one_width_are_repeated_at_that_width() -> None:
    """Blocks and checks take turns, as they do where a pass has no room for both."""
    rests, block, check = Rests(), DraftChoice(0, 16), DraftChoice(15, 0)
    assert fed(rests, DraftChoice(0, 9), block, check, block, check) == 3
    offers = [DraftChoice(*each) for each in ((0, 16), (15, 16), (4, 16), (15, 3), (2, 0), (0, 0))]
    assert rests.repeated(offers) == [
        DraftChoice(*each) for each in ((0, 16), (15, 0), (4, 12), (15, 0), (2, 0), (0, 0))
    ]
    assert fed(rests, block) == 7
    assert fed(rests, check) == 7
    assert not fed(rests, DraftChoice(4, 4), block, check, block)  # another width
    assert fed(rests, check) == 3


def test_rows_of_a_batch_that_all_take_blocks_and_drafts_do_not_for_long() -> None:
    """Soon some have a wrong draft behind them, and need a block only."""
    assert not fed(Rests(), *[DraftChoice(15, 16)] * 3)
    assert fed(Rests(), *[DraftChoice(15, 16)] * 4) == 3  # these keep one width


def test_copies_are_decided_for_in_each_pass() -> None:
    """They are there in one pass, and are not in the next."""
    assert not fed(Rests(), *[DraftChoice(3, 0)] * 12)


def test_where_passes_have_no_padding_rows_are_decided_for_one_by_one() -> None:
    """However many there are: the block of one row says nothing of the others."""
    assert not fed(Rests(), *[DraftChoice(4, 4)] * 12, rows=70, is_padded=False)


def test_passes_with_branches_are_decided_for() -> None:
    """They are wider than what may be repeated."""
    assert not fed(Rests(), *[DraftChoice(8, 8, 4, 8)] * 12)
