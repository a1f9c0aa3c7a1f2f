"""How a budget of tokens is shared: nothing above it, no request left out for ever, short prompts not behind long ones."""

from hypothesis import given
from hypothesis import strategies as st

from setblock.engine.schedule import schedule
from setblock.model.protocol.runtime import RowSchedule

Batch = tuple[list[RowSchedule], list[int]]
"""What each is fed by a full pass, and when it was served."""


@st.composite
def waiting(draw: st.DrawFn) -> Batch:
    schedules, served = [], []
    for _ in range(draw(st.integers(1, 12))):
        is_prefill, start = draw(st.booleans()), draw(st.integers(0, 50))
        end = start + draw(st.integers(1, 400 if is_prefill else 16))
        schedules.append(RowSchedule(start, end, end if is_prefill else start, is_prefill))
        served.append(draw(st.integers(-1, 6)))
    return schedules, served


def given_tokens(rows: Batch, budget: int) -> list[int]:
    schedules, served = rows
    found = schedule(schedules, budget, served=served)
    for scheduled, cut in zip(schedules, found, strict=True):
        assert (cut.start, cut.block_start, cut.is_cut) == (
            scheduled.start,
            scheduled.block_start,
            cut.end < scheduled.end,
        )
    return [scheduled.tokens for scheduled in found]


@given(waiting(), st.integers(32, 600))
def test_a_pass_is_within_its_budget_and_blocks_are_whole(rows: Batch, budget: int) -> None:
    found = given_tokens(rows, budget)
    assert 0 < sum(found) <= budget
    for scheduled, tokens in zip(rows[0], found, strict=True):
        assert 0 <= tokens <= scheduled.tokens
        assert scheduled.is_prefill or tokens in (0, scheduled.tokens)


@given(waiting(), st.integers(32, 600))
def test_nothing_waits_that_has_room(rows: Batch, budget: int) -> None:
    found = given_tokens(rows, budget)
    left = budget - sum(found)
    for scheduled, tokens in zip(rows[0], found, strict=True):
        if scheduled.is_prefill:
            assert tokens == scheduled.tokens or left == 0
        elif not any(each.is_prefill for each in rows[0]):
            assert tokens == scheduled.tokens or left < scheduled.tokens


@given(waiting(), st.integers(32, 600))
def test_each_kind_has_half_if_it_needs_it(rows: Batch, budget: int) -> None:
    found = given_tokens(rows, budget)
    for is_prefill in (True, False):
        of_kind = [
            (scheduled.tokens, tokens)
            for scheduled, tokens in zip(rows[0], found, strict=True)
            if scheduled.is_prefill == is_prefill
        ]
        wanted, got = (sum(column) for column in zip(*of_kind, strict=True)) if of_kind else (0, 0)
        # Blocks are not cut, so one may just not fit
        assert got >= min(wanted, budget // 2 - (0 if is_prefill else 16))


@given(waiting(), st.integers(1, 600))
def test_every_request_gets_on_within_as_many_passes_as_there_are_requests(rows: Batch, budget: int) -> None:
    """Though all the others always want more."""
    schedules, served = rows
    for number in range(10, 10 + len(schedules)):
        found = given_tokens((schedules, served), budget)
        served = [number if tokens else before for tokens, before in zip(found, served, strict=True)]
    assert min(served) >= 10


@given(st.integers(1, 20), st.integers(1000, 10**6))
def test_a_short_prompt_is_fed_at_once_beside_a_long_one(short: int, long: int) -> None:
    rows = [RowSchedule(0, long, long, is_prefill=True), RowSchedule(0, short, short, is_prefill=True)], [3, 3]
    assert given_tokens(rows, 100) == [100 - short, short]


@given(waiting(), st.integers(32, 600), st.data())
def test_tokens_that_are_fed_again_count(rows: Batch, budget: int, data: st.DataObject) -> None:
    """A pass is within its budget with those of the blocks that it feeds, unless one block alone is not."""
    schedules, served = rows
    refed = [0 if each.is_prefill else data.draw(st.integers(0, 60)) for each in schedules]
    found = schedule(schedules, budget, served=served, refed=refed)
    fed = [each.tokens + again for each, again in zip(found, refed, strict=True) if each.tokens]
    blocks = [each for each in found if each.tokens and not each.is_prefill]
    assert fed
    assert sum(fed) <= budget or len(blocks) == 1
