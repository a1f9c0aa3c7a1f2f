"""What decides how much is drafted, pass by pass: on costs as machines have them."""

from collections.abc import Sequence

import pytest

from given_costs import GivenControl, GivenCosts, by_token, decided, gain_of, on_a_cpu
from setblock.decoding.drafts.control import DraftControl
from setblock.decoding.drafts.costs import LearnedCosts, TimedPass
from setblock.decoding.drafts.gains import (
    CONFIDENCES,
    COPIED,
    ELSEWHERE,
    USUAL,
    Chances,
    DraftChoice,
    Prospects,
)
from setblock.model.protocol.runtime import Runner, Span
from setblock.roofline.hardware import HARDWARE
from setblock.roofline.prediction import Precision, Prediction, last_paying_batch
from setblock.roofline.shape import PRESETS


def was_fed(kinds: Sequence[int], *, block: int = 0) -> Span:
    """What a row at position 10 was fed: the next token, drafts of these kinds, and so much of a block behind them."""
    block_start = 11 + len(kinds)
    return Span(10, block_start + block, block_start, is_prefill=False, kinds=tuple(kinds))


def stands_at(position: int, kinds: Sequence[int] = (), *, copied: int = 0) -> Span:
    """Where a row stands after its pass, with drafts of these kinds."""
    return Span(position, position, position, is_prefill=False, kinds=tuple(kinds), copied=copied)


def know_drafts(control: DraftControl) -> None:
    """So many drafts were there already that none is tried to learn how good they are."""
    for _ in range(20):
        control._expected.learn([USUAL**place for place in range(1, 16)])


def on_an_h100(tokens: int, rows: int) -> float:
    prediction = Prediction(
        shape=PRESETS["llama-3.1-8b"], hardware=HARDWARE["h100"], precision=Precision.of("bfloat16")
    )
    return prediction.seconds(1, batch=tokens, kv_length=1) + 0 * rows


class DearBlocks(GivenCosts):
    def extras(self) -> tuple[float, float]:
        return 0.0, 0.5


def test_any_block_costs_what_it_does_once() -> None:
    """Where other rows have one, it costs no more; and passes with one count as what they are."""
    for reached, has_block, fed in ((0.4, False, 0), (0.4, True, 2), (0.9, False, 2)):
        control = GivenControl(DearBlocks(lambda tokens, rows: 1.0))
        control._here = "any", 0
        know_drafts(control)
        rows, before = [Prospects([], [reached], 2)], 0.98 * control._gain_here.spent
        (choice,) = control.decide(rows, "any", others=0, prompts=0, padded_rows=1, cached=0, has_block=has_block)
        assert choice.fed == fed
        assert control._gain_here.spent - before == pytest.approx(1.5 if fed and not has_block else 1.0)


def test_a_block_is_worth_what_it_gives_beyond_copies() -> None:
    """Of two rows whose blocks draft as well, one has a copy whenever there is a block."""
    for copied in (0, COPIED + 6):
        control = GivenControl(GivenCosts(lambda tokens, rows: 1 + 0.15 * tokens))
        row = control.new_row()
        for _ in range(60):
            row.prospects([], 4, waits=False)
            row.fed = was_fed((), block=4)
            control.observe(row, stands_at(11, [len(CONFIDENCES)] * 3, copied=copied))
        (choice,) = control.decide(
            [row.prospects([], 4, waits=False)], "any", others=0, prompts=0, padded_rows=1, cached=0
        )
        assert choice.fed == (0 if copied else 4)


@pytest.mark.parametrize("size", [8, 16])
def test_blocks_are_whole_at_small_batches_and_shrink_where_the_roofline_says_that_the_gain_ends(size: int) -> None:
    """On an H100's costs of Llama-3.1-8B, for drafts that are right at 0.8 of all places: where blocks stop paying by eq. 16,
    little is fed."""
    fed = {}
    for rows in (1, 2, 4, 8, 16, 32, 64, 128, 256, 512):
        control = GivenControl(GivenCosts(on_an_h100))
        know_drafts(control)
        fed[rows] = sum(choice.fed for choice in decided(control, rows, size=size)) / rows
    assert fed[1] == fed[2] == fed[4] == size
    assert list(fed.values()) == sorted(fed.values(), reverse=True)
    prediction = Prediction(
        shape=PRESETS["llama-3.1-8b"], hardware=HARDWARE["h100"], precision=Precision.of("bfloat16")
    )
    passes = sum(0.8**place for place in range(size))
    last = last_paying_batch(prediction, passes, block_size=size, kv_length=1)
    assert last is not None
    assert all(each < size for rows, each in fed.items() if rows > 2 * last)
    assert fed[512] == 0


def test_a_row_whose_drafts_are_wrong_stops_drafting_and_others_do_not() -> None:
    control = GivenControl(GivenCosts(lambda tokens, rows: 0.7 + 0.1 * tokens))
    kinds = [COPIED + 1] * 3
    wrong, right = control.new_row(), control.new_row()
    for _ in range(20):
        for row, gained in ((wrong, 1), (right, 4)):
            row.fed = was_fed(kinds)
            control.observe(row, stands_at(10 + gained))
    prospects = [row.prospects(kinds, 0, waits=False) for row in (wrong, right)]
    chosen = control.decide(prospects, "any", others=0, prompts=0, padded_rows=2, cached=0)
    assert [choice.drafted for choice in chosen] == [0, 3]


def test_what_few_rows_gain_is_not_asked_of_many() -> None:
    """A row alone gains several tokens a pass. A full batch, whose tokens cost more, drafts as if it had been there first."""
    costs = GivenCosts(on_a_cpu)
    kinds, before, fresh = [COPIED + 6] * 7, GivenControl(costs), GivenControl(costs)
    row = before.new_row()
    for _ in range(200):
        choice = before.decide(
            [row.prospects(kinds, 0, waits=False)], "any", others=0, prompts=0, padded_rows=1, cached=0
        )[0]
        row.fed = was_fed(kinds[: choice.drafted])
        before.observe(row, stands_at(11 + choice.drafted))
    assert gain_of(before) > 2
    fresh.new_row().chances.learn(kinds * 30, right=7 * 30)
    full, alone = decided(before, 20, size=0, kinds=kinds), decided(fresh, 20, size=0, kinds=kinds)
    assert full == alone != [DraftChoice(0, 0)] * 20


def test_what_a_draft_costs_among_many_rows_is_not_taken_for_what_it_costs_among_few(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Among 32 rows a second token of any row takes much longer, as attention in parts does; among 8 rows little."""
    monkeypatch.setattr("setblock.decoding.drafts.control.LearnedCosts", LearnedCosts)
    control = DraftControl()
    for tokens in [32, 33, 40, 52] * 60:
        seconds = 0.1 + 0.001 * tokens + 0.03 * (tokens > 32)
        control.learn(
            TimedPass("any", tokens, 32, cached=6400, uneven=int(tokens > 32), has_block=False, seconds=seconds)
        )
    for tokens in [8, 8, 8, 12] * 6:
        control.learn(
            TimedPass("any", tokens, 8, cached=1600, uneven=0, has_block=False, seconds=0.05 + 0.001 * tokens)
        )
    plain, more = control.costs_of("any", rows=8).seconds([8, 12], rows=8, cached=1600)
    assert more / plain == pytest.approx(62 / 58, abs=0.02)
    runner = type("any", (Runner,), {})()
    assert control.curve(runner, rows=31, cached=0)
    assert not control.curve(runner, rows=2, cached=0)


def test_drafts_that_are_hardly_ever_right_only_fill_a_pass_up() -> None:
    """Where a pass computes multiples of 8 tokens, and each takes its time, those that it computes anyway cost nothing."""
    control = GivenControl(GivenCosts(by_token))
    for rows, filled in ((6, 8), (8, 8), (9, 16)):
        prospects = [control.new_row().prospects([ELSEWHERE] * 3, 0, waits=False) for _ in range(rows)]
        chosen = control.decide(
            prospects,
            "any",
            others=0,
            prompts=0,
            padded_rows=rows,
            cached=0,
            computed=lambda tokens: -(-tokens // 8) * 8,
        )
        assert rows + sum(each.tokens for each in chosen) == filled


def test_chances_that_promise_too_much_are_trusted_less() -> None:
    """Of many rows, those are chosen that were lucky. Half of what they promise comes: then less is drafted."""
    costs = GivenCosts(lambda tokens, rows: 1 + 0.08 * tokens)
    control, kinds = GivenControl(costs), [COPIED + 3]
    assert decided(control, 8, size=0, kinds=kinds) == [DraftChoice(1, 0)] * 8
    for turn in range(60):
        row = control.new_row()
        row.fed = was_fed(kinds)
        control.observe(row, stands_at(10 + 1 + (turn % 5 < 2)))
        control._chances = Chances(memory=500.0)  # each row as lucky as the first
    assert decided(control, 8, size=0, kinds=kinds) == [DraftChoice(0, 0)] * 8


def test_trust_returns_where_nothing_is_drafted() -> None:
    """The chances that were not kept were another text's. What is not checked says nothing of this one."""
    control = GivenControl(GivenCosts(by_token))
    decided(control, 8, size=0)
    control._gain_here.hoped, control._gain_here.right = 200.0, 20.0
    trust = [control._gain_here.trust]
    for _ in range(40):
        decided(control, 8, size=0, kinds=[COPIED])
        if control.resting:
            control.rest([control.new_row()] * 8, [])
        trust.append(control._gain_here.trust)
    assert trust[0] < 0.15
    assert trust == sorted(trust)
    assert trust[-1] > 0.85


def test_a_batch_that_nobody_joins_drafts_for_those_who_end_last() -> None:
    """Seven rows copy, at a cost that they are worth where others take their place. Alone they are not: the eighth copies
    nothing, and its passes stay."""
    costs = GivenCosts(lambda tokens, rows: 5 + 0.1 * rows + 0.3 * (tokens - rows))
    for remaining, is_taken in ((0, True), (64, False)):
        control = GivenControl(costs)
        rows = [control.new_row() for _ in range(8)]
        for row in rows[:7]:
            row.pace = 1.5
        prospects = [
            row.prospects([COPIED + 2] if row in rows[:7] else [], 0, waits=False, remaining=remaining) for row in rows
        ]
        chosen = control.decide(prospects, "any", others=0, prompts=0, padded_rows=8, cached=0)
        assert chosen == [DraftChoice(int(is_taken), 0)] * 7 + [DraftChoice(0, 0)]


def test_a_pass_that_is_filled_up_pays_for_what_a_second_token_costs() -> None:
    """Two rows, and two that have ended, in a compiled pass: the rows that fill it up are no second tokens."""
    control = GivenControl(GivenCosts(lambda tokens, rows: 1 + 0.5 * (tokens > rows)))
    prospects = [control.new_row().prospects([0], 0, waits=False) for _ in range(2)]
    chosen = control.decide(prospects, "any", others=0, prompts=0, padded_rows=4, cached=0, widths=[1, 8])
    assert chosen == [DraftChoice(0, 0)] * 2


def test_a_model_that_nobody_knows_is_tried_whatever_it_costs() -> None:
    """Where a block of usual drafts is not worth its cost, one row of many is fed one until a few drafts were seen; and if they
    are better than usual, all rows are."""
    control = GivenControl(GivenCosts(lambda tokens, rows: 4 + 0.27 * tokens))
    trials = 0
    while (chosen := decided(control, 8, size=16)) == [DraftChoice(0, 16), *[DraftChoice(0, 0)] * 7]:
        row, trials = control.new_row(), trials + 1
        row.fed = was_fed((), block=16)
        row.size = 16
        control.observe(row, stands_at(11, [len(CONFIDENCES)] * 15))
    assert 1 < trials < 10
    assert all(each.fed for each in chosen)


def test_where_passes_have_padding_all_rows_try_a_model_that_nobody_knows() -> None:
    """The pass computes as much for each. So rows that have a copy to check try it too."""
    control = GivenControl(GivenCosts(lambda tokens, rows: 4 + 0.27 * tokens))
    rows = [control.new_row().prospects([COPIED] * has_copy, 16, waits=False) for has_copy in [0, 1] * 6]
    chosen = control.decide(rows, "any", others=0, prompts=0, padded_rows=12, cached=0, widths=[1, 2, 4, 8, 16, 17])
    assert chosen == [DraftChoice(0, 16)] * 12
    assert control._gain_here.last == 1.0  # a trial does not count


def test_how_a_batch_ends_does_not_tell_how_the_next_one_begins() -> None:
    """The last drafts of a batch are those behind the ends of its answers: nothing of them is right."""
    control = DraftControl()
    batch = [control.new_row() for _ in range(20)]
    for right in [1.0] * 8 + [0.0]:
        for row in batch:
            row.expected.learn([right] * 7)
    assert control.new_row().expected.of(7)[-1] > 0.8


def test_what_passes_of_one_kind_gain_is_not_asked_of_another_kind() -> None:
    """An engine's passes compute no padding, so they gain more than those of a padded batch over as many rows."""
    control = GivenControl(GivenCosts(lambda tokens, rows: 1.0))
    row = control.new_row().prospects([], 0, waits=False)._replace(reached=[0.9])
    for name in ("packed", "padded"):
        control.decide([row] * 8, name, others=0, prompts=0, padded_rows=8, cached=0)
        if name == "packed":
            control._gain_here.gained *= 3
            assert gain_of(control) > 2
    assert gain_of(control) < 1.1


def test_what_is_gained_already_is_asked_of_drafts_once() -> None:
    """Passes gain half as much again. Where some rows draft well, a draft that gains a tenth more than that for its cost is
    taken, and one that gains a tenth less is not."""
    for chance, is_taken in ((0.55 * 1.1, True), (0.55 * 0.9, False)):
        control = gains_half_as_much_again()
        worth = 1.5 * 8 * 0.5 / 11  # what a token more costs, in tokens
        assert worth == pytest.approx(0.545, abs=0.001)
        rows = [Prospects([each], (), 0) for each in (*[0.9] * 7, chance)]
        chosen = control.decide(rows, "any", others=0, prompts=0, padded_rows=8, cached=0)
        assert chosen == [DraftChoice(1, 0)] * 7 + [DraftChoice(int(is_taken), 0)]


def test_where_nothing_brings_what_passes_gain_drafts_need_only_be_better_than_plain_passes() -> None:
    for times, is_taken in ((1.2, False), (1.3, True), (1.45, True)):
        control, row = gains_half_as_much_again(), Prospects([times * 8 * 0.5 / 11], (), 0)
        chosen = control.decide([row] * 8, "any", others=0, prompts=0, padded_rows=8, cached=0)
        assert chosen == [DraftChoice(int(is_taken), 0)] * 8


def gains_half_as_much_again() -> GivenControl:
    """Passes of eight rows have gained so much. Each further token costs half a plain pass for eleven."""
    control = GivenControl(GivenCosts(lambda tokens, rows: 1 + 0.5 * (tokens - 8) / 11))
    decided(control, 8, size=0)
    control._gain_here.gained, control._gain_here.spent = 96.0, 64.0
    return control


def test_copies_behind_a_block_say_nothing_of_what_a_longer_block_would_give() -> None:
    control = DraftControl()
    row = control.new_row()
    before = row.expected.of(7)
    sure = len(CONFIDENCES)
    for _ in range(50):
        row.fed = was_fed((), block=4)
        control.observe(row, stands_at(11, [sure, sure, sure, COPIED, COPIED, COPIED, COPIED]))
    after = row.expected.of(7)
    assert min(after[:3]) > 0.9
    assert all(found >= guess for found, guess in zip(after[3:], before[3:], strict=True))
