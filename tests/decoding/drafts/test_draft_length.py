"""How long drafts are: what is measured of passes and drafts, and what is chosen by it."""

import pickle
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.decoding.drafts.draft_length import (
    DraftLength,
    DraftLengths,
    FadingMeans,
    PassShape,
    PassTimes,
    RowDraft,
)
from setblock.decoding.drafts.kinds import CONFIDENCES, COPIED, PRIOR
from setblock.decoding.drafts.shorten import RowHistory, new_history
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import Engine, Request
from setblock.engine.generate import generate_batch
from setblock.engine.offline import answered
from setblock.model.protocol.runtime import RowSchedule

SURE = len(CONFIDENCES)  # the kind of what a model drafts with the greatest confidence
NOTHING = DraftLength(0, 0)
Seconds = Callable[[int, int], float]


def on_a_cpu(tokens: int, rows: int) -> float:
    return 0.85 + 0.035 * tokens + 0.08 * rows


def on_a_gpu(tokens: int, rows: int) -> float:
    """Up to 256 tokens cost nothing."""
    return 1.0 + 0.002 * rows + max(0, tokens - 256) / 256


def measured(seconds: Seconds, *, rows: int, free_tokens: float = 48.0, kind: str = "any") -> DraftLengths:
    """What chooses, after passes of many sizes."""
    lengths = DraftLengths(free_tokens)
    for tokens in [rows * width for width in (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)] * 3:
        lengths.times(kind, rows).update(tokens, seconds(tokens, rows))
    return lengths


def half(number: int, before: float) -> float:
    return 0.5


def chosen(lengths: DraftLengths, rows: Sequence[RowDraft], **more: Any) -> list[DraftLength]:
    return lengths.choose(rows, PassShape("any", len(rows), **more))


# What is measured


def test_means_begin_with_their_prior_and_follow_what_is_seen() -> None:
    means = FadingMeans(memory=20)
    assert means.values(2, half) == [0.5, 0.5]
    for _ in range(100):
        means.update(1, 1.0)
    assert means.values(2, half) == [0.5, pytest.approx((20 + 6 * 0.5) / 26)]
    for _ in range(40):
        means.update(1, 0.0)
    assert means.values(2, half)[1] < 0.25
    rising = means.values(4, lambda number, before: before / 2)
    assert rising[2:] == [rising[1] / 2, rising[1] / 4]


def test_a_row_begins_as_other_rows_of_its_model_are() -> None:
    model = FadingMeans(memory=300)
    first, second = FadingMeans(20, model), FadingMeans(20, model)
    for _ in range(50):
        first.update(0, 1.0)
    assert second.values(1, half) == model.values(1, half)
    assert second.values(1, half)[0] > 0.8
    for _ in range(20):
        second.update(0, 0.0)
    assert second.values(1, half)[0] < 0.3 < model.values(1, half)[0]


def test_seconds_lie_between_those_of_measured_passes() -> None:
    times = PassTimes(free_tokens=48.0)
    assert times.seconds(np.asarray([48.0]))[0] == 2 * times.seconds(np.asarray([0.0]))[0]
    for tokens in (4, 8, 16, 64):
        times.update(tokens, 1.0 + tokens)
    assert times.seconds(np.asarray([4.0, 6.0, 10.0, 16.0, 64.0])).tolist() == pytest.approx([5, 7, 11, 17, 65])
    found = times.seconds(np.asarray([1.0, 40.0, 128.0])).tolist()  # in the ratio of what is assumed
    assert found == pytest.approx([5 * 49 / 52, 17 * 88 / 64, 65 * 176 / 112])


def test_a_pass_that_was_disturbed_counts_for_little() -> None:
    times = PassTimes(free_tokens=48.0)
    for _ in range(20):
        times.update(8, 1.0)
    times.update(8, 10.0)
    assert times.seconds(np.asarray([8.0]))[0] < 1.6
    for _ in range(10):
        times.update(8, 1.0)
    assert times.seconds(np.asarray([8.0]))[0] < 1.05


def test_the_first_pass_of_a_size_which_prepares_things_is_forgotten() -> None:
    times = PassTimes(free_tokens=48.0)
    for seconds in (50.0, 1.0):
        times.update(8, seconds)
    assert times.seconds(np.asarray([8.0]))[0] == 1.0


def test_a_slow_size_does_not_take_longer_than_a_larger_one() -> None:
    times = PassTimes(free_tokens=48.0)
    for tokens, seconds in ((1, 1.0), (8, 5.0), (32, 2.0)):
        times.update(tokens, seconds)
    assert times.seconds(np.asarray([8.0]))[0] == 2.0


def test_times_of_other_numbers_of_rows_begin_with_the_most_similar_ones() -> None:
    lengths = DraftLengths()
    lengths.times("packed", 8).update(8, 3.0)
    lengths.times("packed", 1).update(1, 1.0)
    lengths.times("padded", 16).update(16, 9.0)
    assert lengths.times("packed", 16).seconds(np.asarray([8.0]))[0] == 3.0
    lengths.times("packed", 16).update(16, 4.0)
    assert lengths.times("packed", 5).seconds(np.asarray([8.0]))[0] == 3.0  # 5 to 8 rows are together
    assert lengths.curve("packed", 16)[-1] == (16, 4.0)
    assert lengths.curve("packed", 64) == ()


# What is chosen


@pytest.mark.parametrize("rows", [1, 8])
@pytest.mark.parametrize("widths", [None, [1, 2, 3, 4, 6, 8, 12, 15]])
def test_all_is_drafted_where_that_is_free_and_nothing_where_it_costs_what_tokens_cost(
    rows: int, widths: list[int] | None
) -> None:
    drafts = [RowDraft([0.9, 0.8, 0.7], [0.9, 0.8, 0.7, 0.6], 5)] * rows
    shape = {"widths": widths, "padded_rows": rows}
    assert chosen(measured(lambda tokens, rows: 1.0, rows=rows), drafts, **shape)[0].fed == 5
    assert chosen(measured(lambda tokens, rows: 1.0, rows=rows), drafts, **shape)[0].drafted == 3
    assert chosen(measured(lambda tokens, rows: tokens, rows=rows), drafts, **shape) == [NOTHING] * rows


def test_of_two_rows_the_one_whose_drafts_are_right_drafts() -> None:
    lengths = measured(lambda tokens, rows: 0.7 + 0.1 * tokens, rows=2)
    drafts = [RowDraft([0.1, 0.01]), RowDraft([0.95, 0.9])]
    assert chosen(lengths, drafts) == [NOTHING, DraftLength(2, 0)]


def test_a_draft_is_checked_where_a_new_block_costs_more_than_it_gives() -> None:
    lengths = measured(lambda tokens, rows: 1 + 0.3 * tokens, rows=1)
    assert chosen(lengths, [RowDraft([0.99, 0.98], [0.2, 0.1, 0.0], 4)]) == [DraftLength(2, 0)]


def test_drafts_that_are_hardly_ever_right_only_fill_a_pass_up() -> None:
    """Where a pass computes multiples of 8 tokens, and each takes its time, those that it computes anyway cost nothing."""
    for rows, filled in ((6, 2), (8, 0), (9, 7)):
        lengths = measured(lambda tokens, rows: tokens, rows=8)
        drafts = [RowDraft([0.35 if row < filled else 0.05]) for row in range(rows)]
        found = chosen(lengths, drafts, computed=lambda tokens: -(-tokens // 8) * 8)
        assert sum(each.drafted for each in found) == filled


def test_a_block_that_has_a_pass_of_its_own_pays_for_it() -> None:
    """A good draft is fed, and a poor one only where it is fed with what is committed."""
    lengths = measured(lambda tokens, rows: 1.0, rows=1)
    for expected, fuses, is_fed in ((0.9, False, True), (0.3, False, False), (0.3, True, True)):
        draft = RowDraft([], [expected, expected / 2, expected / 4], 4)
        assert bool(chosen(lengths, [draft], fuses_commit=fuses)[0].fed) == is_fed


def test_in_passes_of_few_widths_a_draft_pays_for_the_whole_width() -> None:
    """Two rows, and two that have ended, in a compiled pass of 1 or 8 tokens for each."""
    for seconds, drafted in ((lambda tokens, rows: 1 + 0.5 * (tokens > 4), 0), (lambda tokens, rows: 1.0, 1)):
        lengths = measured(seconds, rows=4)
        found = lengths.choose([RowDraft([0.2])] * 2, PassShape("any", 4, others=2, widths=[1, 8], padded_rows=4))
        assert found == [DraftLength(drafted, 0)] * 2


def test_what_was_refused_is_tried_again_the_later_the_more_it_costs() -> None:
    """The machine has become faster at longer passes. Until that is known, trying them costs little."""
    tried = {}
    for cost in (1.0, 4.0):
        lengths = measured(lambda tokens, rows, cost=cost: 1 + cost * (tokens - 1), rows=1)  # type: ignore[misc]
        draft = RowDraft([0.5] * 7)
        tried[cost] = [pass_ for pass_ in range(3000) if chosen(lengths, [draft])[0].drafted]
        assert len(tried[cost]) >= 1
        assert sum(cost * 7 for _ in tried[cost]) < 0.1 * 3000
    assert len(tried[1.0]) > len(tried[4.0])
    for _ in range(100):
        (found,) = chosen(lengths, [draft])
        lengths.times("any", 1).update(1 + found.drafted, 1.0)
    times = lengths.times("any", 1)
    for _ in range(20):  # as it is once it was tried
        times.update(8, 1.0)
    assert sum(chosen(lengths, [draft])[0].drafted == 7 for _ in range(20)) >= 18


def test_where_nothing_was_measured_drafts_are_as_long_as_the_roofline_gives_away() -> None:
    """On a GPU many rows draft whole blocks before any pass was timed; on a CPU fewer do."""
    draft = RowDraft([], [0.9 ** (1 + place) for place in range(15)], 16)
    fed = {free: chosen(DraftLengths(free), [draft] * 8)[0].fed for free in (4.0, 48.0, 512.0)}
    assert fed[4.0] < fed[48.0] < fed[512.0] == 16


# What becomes of drafts


def fed_span(kinds: Sequence[int], *, block: int = 0) -> RowSchedule:
    """What a row at position 10 was fed: its next token, drafts of these kinds, and so much of a block behind them."""
    start = 11 + len(kinds)
    return RowSchedule(10, start + block, start, is_prefill=False, kinds=tuple(kinds))


def next_span(position: int, kinds: Sequence[int] = (), *, copied: int = 0, token: int = 0) -> RowSchedule:
    """Where a row stands after its pass, with drafts of these kinds."""
    end = position + 1 + len(kinds)
    return RowSchedule(
        position, end, end, is_prefill=False, kinds=tuple(kinds), copied=copied, token_ids=(token, *[0] * len(kinds))
    )


def learned(fed: RowSchedule, after: RowSchedule, *, whole: RowSchedule | None = None, block: int = 0) -> RowHistory:
    history = new_history(DraftLengths())
    history.fed, history.whole, history.block = fed, whole or fed, block
    history.learn(after)
    return history


def changed(history: RowHistory) -> dict[int, bool]:
    """The kinds of which something was learned, and whether they are more often right now."""
    found = history.right.values(len(PRIOR), lambda kind, before: PRIOR[kind])
    pairs = enumerate(zip(found, PRIOR, strict=True))
    return {kind: now > before for kind, (now, before) in pairs if now != pytest.approx(before)}


def test_tokens_of_a_draft_are_learned_of_up_to_the_first_wrong_one() -> None:
    assert changed(learned(fed_span([1, 2, 3]), next_span(14))) == {1: True, 2: True, 3: True}
    assert changed(learned(fed_span([1, 2, 3]), next_span(12))) == {1: True, 2: False}
    assert changed(learned(fed_span([1, 2, 3]), next_span(11))) == {1: False}
    assert changed(learned(fed_span([]), next_span(11))) == {}


def test_the_first_token_that_was_not_checked_is_learned_of_too() -> None:
    """The next pass's first token says whether it was right."""
    whole = fed_span([1, 2])._replace(token_ids=(7, 8, 9))
    for token, is_right in ((9, True), (5, False)):
        assert changed(learned(fed_span([1]), next_span(12, token=token), whole=whole)) == {1: True, 2: is_right}


def test_a_block_gains_what_it_gives_beyond_copies() -> None:
    drafts = [SURE] * 3
    alone = learned(fed_span([], block=4), next_span(11, drafts), block=4)
    beside = learned(fed_span([], block=4), next_span(11, drafts, copied=COPIED + 7), block=4)
    assert all(better > 0.5 for better in alone.of_blocks.values(3, half))
    assert all(better < 0.5 for better in beside.of_blocks.values(3, half))


def test_what_a_wrong_draft_made_void_says_nothing_of_blocks() -> None:
    void = learned(fed_span([1, 1], block=4), next_span(11), block=4)
    assert void.of_blocks.values(1, half) == [0.5]


def test_state_stays_as_small_over_ten_thousand_passes() -> None:
    """Also where nobody chooses, and each pass is only timed."""
    rng, lengths = random.Random(0), DraftLengths()
    history = new_history(lengths)
    sizes = []
    for number in range(10_000):
        rows = rng.randint(1, 64)
        lengths.times(f"kind {number % 2}", rows).update(rng.randint(rows, 32 * rows), rng.random())
        history.fed, history.block = fed_span([rng.randrange(len(PRIOR))] * 15, block=16), 16
        history.learn(next_span(10 + rng.randint(1, 16), [SURE] * 15))
        if number % 2:
            chosen(lengths, [history.draft(next_span(5, [SURE] * 15), BatchParams, has_blocks=True)])
        if number in (2_000, 9_999):
            sizes.append(len(pickle.dumps((lengths.right, lengths.of_blocks, lengths._times, history))))
    assert sizes[1] <= 1.2 * sizes[0]  # 16 bytes for each number that is no longer the same one


class BatchParams:
    """Of a row, as far as a draft needs them."""

    block_size, limit = 16, 100


# All of it, on a simulated clock


def simulated(seconds: Seconds, *, rows: int, right: float, size: int | None, seed: int = 0) -> float:
    """How many times as many tokens a second as plain decoding rows get whose drafted tokens are right so often. `size`: of
    fixed blocks; None to choose. Times are learned with noise, and the first passes don't count."""
    rng, lengths = random.Random(seed), DraftLengths(512.0 if seconds is on_a_gpu else 48.0)
    histories, drafts, position = [new_history(lengths) for _ in range(rows)], [0] * rows, [0] * rows
    kinds = [min(range(len(CONFIDENCES) + 1), key=lambda kind: abs(PRIOR[kind] - right))] * 15
    gained, spent = 0, 0.0
    for number in range(400):
        schedules = [
            next_span(at, kinds[:length])._replace(token_ids=(0,) * 16)
            for at, length in zip(position, drafts, strict=True)
        ]
        for history, scheduled in zip(histories, schedules, strict=True):
            history.learn(scheduled)
        some = [
            history.draft(scheduled._replace(start=5), BatchParams, has_blocks=True)  # type: ignore[arg-type]
            for history, scheduled in zip(histories, schedules, strict=True)
        ]
        found = chosen(lengths, some) if size is None else [DraftLength(length, size) for length in drafts]
        tokens = rows + sum(each.drafted + each.fed for each in found)
        lengths.times("any", rows).update(tokens, seconds(tokens, rows) * rng.uniform(0.95, 1.15))
        for row, (each, scheduled, history) in enumerate(zip(found, schedules, histories, strict=True)):
            first = next((place for place in range(each.drafted) if rng.random() >= right), each.drafted)
            end = scheduled.start + 1 + each.drafted
            history.fed = RowSchedule(
                scheduled.start, end + each.fed, end, is_prefill=False, kinds=tuple(kinds[: each.drafted])
            )
            history.block, history.whole = each.fed, history.fed
            position[row] += 1 + first
            drafts[row] = max(0, each.fed - 1) if first == each.drafted else 0
            gained += (1 + first) * (number >= 100)
        spent += seconds(tokens, rows) * (number >= 100)
    return gained / spent * seconds(rows, rows) / rows


@pytest.mark.parametrize(("rows", "right"), [(1, 0.45), (1, 0.95), (4, 0.7), (16, 0.7), (16, 0.95), (32, 0.45)])
@pytest.mark.parametrize("seconds", [on_a_cpu, on_a_gpu])
def test_is_never_far_below_plain_decoding_or_the_best_fixed_length(seconds: Seconds, rows: int, right: float) -> None:
    """Where 16 rows on a GPU have drafts that are 95% right, blocks of 8 fill to the token what is free. What is learned of
    seconds and of drafts is too coarse to see that: given the true ones, the rule is as good as the best fixed length."""
    mine = simulated(seconds, rows=rows, right=right, size=None)
    best = max(simulated(seconds, rows=rows, right=right, size=size) for size in (2, 4, 8, 16))
    assert mine >= 0.97
    assert mine >= (0.8 if (seconds, rows, right) == (on_a_gpu, 16, 0.95) else 0.88) * best


class Clock:
    """Passes take a second, and those in which a row has several tokens `times` as long."""

    def __init__(self, times: float) -> None:
        self.times, self.passes = times, list[tuple[int, int]]()

    def start(self, device: torch.device) -> None:
        pass

    def stop(self, device: torch.device, what: tuple[int, int]) -> list[tuple[Any, float]]:
        self.passes.append(what)
        rows, tokens = what
        return [(what, 1.0 if tokens <= rows else self.times)]


@pytest.mark.parametrize("in_engine", [False, True])
def test_the_clock_decides_how_long_drafts_are_and_not_the_text(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], in_engine: bool
) -> None:
    settings = DecodingSettings(block_size=8, max_new_tokens=60)
    found, fed = {}, {}
    for times in (1.0, 20.0):
        sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted", dtype=torch.float64)
        sbd.end_of_text_ids = ()
        sbd.draft_lengths = DraftLengths(clock=(clock := Clock(times)))  # type: ignore[arg-type]
        if in_engine:
            requests = [Request(str(row), prompt, settings) for row, prompt in enumerate(prompts)]
            by_id = dict(answered(Engine(sbd), requests))
            found[times] = [by_id[str(row)].token_ids for row in range(3)]
        else:
            found[times] = [each.token_ids for each in generate_batch(sbd, prompts, settings=settings)]
        fed[times] = sum(tokens - rows for rows, tokens in clock.passes)
    plain = generate_batch(sbd, prompts, settings=replace(settings, method="ntp"))
    assert found[1.0] == found[20.0] == [each.token_ids for each in plain]
    assert fed[1.0] > 2 * fed[20.0]


def test_tokens_that_are_fed_again_count() -> None:
    """Without a draft, the state is kept. So where many known tokens would be fed again, a draft must be likely."""
    for chance, refed, drafted in ((0.35, None, 1), (0.35, [0], 1), (0.35, [40], 0), (0.95, [40], 1)):
        shape = PassShape("a", 1, refed=refed)
        (chosen,) = DraftLengths().choose([RowDraft([chance])], shape)
        assert chosen.drafted == drafted, (chance, refed)
