"""What drafts may gain, and what is chosen by it: pure functions of numbers, against plain twins."""

import itertools
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from given_costs import on_a_cpu
from setblock.decoding.drafts.alike import choose_drafts_alike
from setblock.decoding.drafts.costs import unevenness
from setblock.decoding.drafts.gains import (
    CONFIDENCES,
    COPIED,
    NUM_KINDS,
    PRIOR,
    Chances,
    DraftChoice,
    ExpectedDraft,
    Prospects,
    Usual,
    choose_drafts,
    copied_kinds,
    kinds_of,
    row_worths,
)

# Allocation


def plain_twin(rows: Sequence[Prospects], seconds: Callable[[int], float], rate: float) -> float:
    """The most that any chosen of drafted places are worth, by trying all."""
    worth = []
    for drafted in itertools.product(*(range(len(row.reached) + 1) for row in rows)):
        gain = sum(sum(row.reached[:count]) for row, count in zip(rows, drafted, strict=True))
        worth.append(gain - rate * seconds(len(rows) + sum(drafted)))
    return max(worth)


chances = st.lists(st.floats(0.01, 0.99), max_size=4).map(
    lambda found: list(itertools.accumulate(found, lambda a, b: a * b))
)


@given(
    drafts=st.lists(chances, min_size=1, max_size=4),
    steps=st.lists(st.floats(0, 0.2), min_size=24, max_size=24),
    rate=st.floats(0.1, 5),
)
def test_drafted_places_are_chosen_as_if_all_choices_had_been_tried(
    drafts: list[list[float]], steps: list[float], rate: float
) -> None:
    """For any costs that rise, kinks and flat parts included."""
    costs = [1.0, *itertools.accumulate(steps, initial=1.0)]
    rows = [Prospects(reached, (), 0) for reached in drafts]
    chosen = choose_drafts(
        rows, lambda tokens: [costs[each] for each in tokens], others=len(rows), rate=rate, usual=Usual()
    )
    gain = sum(sum(row.reached[: choice.drafted]) for row, choice in zip(rows, chosen, strict=True))
    found = gain - rate * costs[len(rows) + sum(choice.drafted for choice in chosen)]
    assert found == pytest.approx(plain_twin(rows, costs.__getitem__, rate))


@given(drafts=st.lists(chances, min_size=1, max_size=3), size=st.integers(2, 8), slope=st.floats(0, 1), data=st.data())
def test_a_block_is_fed_only_if_it_pays(
    drafts: list[list[float]], size: int, slope: float, data: st.DataObject
) -> None:
    expected = [0.9 ** (place + 1) for place in range(size - 1)]
    rows = [Prospects(reached, expected, size) for reached in drafts]
    rate = data.draw(st.floats(0.5, 3))
    chosen = choose_drafts(
        rows, lambda tokens: [1 + slope * each for each in tokens], others=len(rows), rate=rate, usual=Usual()
    )
    one = rate * slope
    for row, choice in zip(rows, chosen, strict=True):
        right = row.reached[choice.drafted - 1] if choice.drafted else 1.0

        def worth(fed: int, right: float = right) -> float:
            return right * sum(max(0.0, each - one) for each in expected[: max(0, fed - 1)]) - one * fed

        sizes = [0, *(each for each in (2, 4, 8) if each < size), size]
        assert choice.fed in sizes
        assert worth(choice.fed) == pytest.approx(max(map(worth, sizes)), abs=1e-6)


def gain_of_branches(row: Prospects, count: int, size: int, one: float) -> float:
    """The chance that the draft is wrong at one of the first places, times what a branch there drafts."""
    wrong = 1 - row.reached[count - 1] if count else 0.0
    return wrong * sum(max(0.0, each - one) for each in row.expected[: max(0, size - 1)])


@given(reached=chances, size=st.integers(2, 8), slope=st.floats(0.01, 0.3), rate=st.floats(0.5, 3))
def test_as_many_branches_are_fed_as_pay(reached: list[float], size: int, slope: float, rate: float) -> None:
    """Of the block's size, where one is fed. As if all numbers had been tried."""
    row = Prospects(reached, [0.8 ** (place + 1) for place in range(size - 1)], size, branches=5)
    (chosen,) = choose_drafts(
        [row], lambda tokens: [1 + slope * each for each in tokens], others=1, rate=rate, usual=Usual()
    )
    assert chosen.branches <= min(5, chosen.drafted)
    assert (chosen.branches == 0) == (chosen.branch_size == 0)
    if chosen.fed and chosen.drafted:
        one, most = rate * slope, min(5, chosen.drafted)
        worth = [gain_of_branches(row, n, chosen.fed, one) - one * n * chosen.fed for n in range(most + 1)]
        assert worth[chosen.branches] == pytest.approx(max(worth), abs=1e-9)
        assert chosen.branch_size in (0, chosen.fed)


@given(
    drafts=st.lists(st.tuples(chances, st.sampled_from([0, 2, 4, 8])), min_size=1, max_size=4),
    widths=st.sets(st.integers(1, 14), min_size=1).map(sorted),
    steps=st.lists(st.floats(0, 0.3), min_size=60, max_size=60),
    rate=st.floats(0.1, 5),
    block=st.sampled_from([0.0, 0.1, 1.0]),
)
def test_rows_that_are_fed_alike_get_the_width_that_is_worth_most(
    drafts: list[tuple[list[float], int]], widths: list[int], steps: list[float], rate: float, block: float
) -> None:
    """As if each width had been tried, row by row: its draft first, and of its block what there is room for."""
    costs = [rate * each for each in itertools.accumulate(steps, initial=1.0)]
    rows = [Prospects(reached, [0.8 ** (place + 1) for place in range(size - 1)], size) for reached, size in drafts]
    chosen = choose_drafts_alike(
        rows,
        lambda tokens: [costs[each] / rate for each in tokens],
        block=block,
        widths=widths,
        padded_rows=len(rows),
        rate=rate,
        usual=Usual(),
    )

    def tried(width: int, following: int) -> tuple[float, list[DraftChoice]]:
        cost, drafted, fed, blocks = costs[width * len(rows)], [], [], []
        one_more = (costs[following * len(rows)] - cost) / (following - width) / len(rows)
        for row in rows:
            drafted.append(min(len(row.reached), width - 1))
            fed.append(min(row.size, width - 1 - drafted[-1]))
            right = row.reached[drafted[-1] - 1] if drafted[-1] else 1.0
            blocks.append(right * sum(max(0.0, each - one_more) for each in row.expected[: max(0, fed[-1] - 1)]))
        of_blocks = sum(blocks) - rate * block
        of_drafts = sum(sum(row.reached[:count]) for row, count in zip(rows, drafted, strict=True))
        fed = [size if gain > 0 and of_blocks > 0 else 0 for size, gain in zip(fed, blocks, strict=True)]
        pairs = zip(drafted, fed, strict=True)
        return of_drafts - cost + max(0.0, of_blocks), [DraftChoice(*pair) for pair in pairs]

    results = [tried(width, following) for width, following in itertools.pairwise([*widths, widths[-1] + 1])]
    best = max(worth for worth, _ in results)
    assert chosen in [choices for worth, choices in results if worth > best - 1e-9]


@given(drafts=st.lists(chances, min_size=1, max_size=3), slope=st.floats(0.01, 0.1), rate=st.floats(0.5, 3))
def test_rows_that_are_fed_alike_get_the_branches_that_pay_for_all(
    drafts: list[list[float]], slope: float, rate: float
) -> None:
    expected = [0.8 ** (place + 1) for place in range(7)]
    rows = [Prospects(reached, expected, 8, branches=3) for reached in drafts]
    chosen = choose_drafts_alike(
        rows,
        lambda tokens: [1 + slope * each for each in tokens],
        widths=list(range(1, 40)),
        padded_rows=len(rows),
        rate=rate,
        usual=Usual(),
    )
    one, found = rate * slope, max(chosen, key=lambda each: each.branches)

    def worth(count: int, size: int) -> float:
        counts = [min(count, each.drafted) for each in chosen]
        gains = (gain_of_branches(row, each, size, one) for row, each in zip(rows, counts, strict=True))
        return sum(gains) - one * count * size * len(rows)

    most = max(each.drafted for each in chosen)
    best = max(worth(count, size) for count in range(min(3, most) + 1) for size in (2, 4, 8))
    assert worth(found.branches, found.branch_size) == pytest.approx(best, abs=1e-9)
    assert all(each.branches == min(found.branches, each.drafted) for each in chosen)


def test_everything_is_taken_where_passes_cost_the_same_and_nothing_where_tokens_are_dear() -> None:
    rows = [Prospects([0.3, 0.1], [0.5] * 7, 8), Prospects([], [0.5] * 7, 8)]
    free = choose_drafts(rows, lambda tokens: [1.0] * len(tokens), others=2, rate=2.0, usual=Usual())
    assert free == [DraftChoice(2, 8), DraftChoice(0, 8)]
    dear = choose_drafts(rows, lambda tokens: [float(each) for each in tokens], others=2, rate=1.0, usual=Usual())
    assert dear == [DraftChoice(0, 0), DraftChoice(0, 0)]
    for widths in ([1, 2, 4, 8, 16], [1, 8, 16]):
        alike = choose_drafts_alike(
            rows, lambda tokens: [1.0] * len(tokens), widths=widths, padded_rows=2, rate=2.0, usual=Usual()
        )
        assert alike == [DraftChoice(2, 8), DraftChoice(0, 8)]
        dear = choose_drafts_alike(
            rows, lambda tokens: [float(n) for n in tokens], widths=widths, padded_rows=2, rate=1.0, usual=Usual()
        )
        assert dear == [DraftChoice(0, 0), DraftChoice(0, 0)]


def test_a_row_that_copies_gets_the_tokens_that_others_leave() -> None:
    sure, doubtful = Prospects([0.95**n for n in range(1, 8)], (), 0), Prospects([0.3, 0.09], (), 0)
    chosen = choose_drafts(
        [doubtful, sure], lambda tokens: [on_a_cpu(each, 2) for each in tokens], others=2, rate=8.0, usual=Usual()
    )
    assert chosen[0].drafted < 2 < chosen[1].drafted


def test_rows_are_fed_alike_where_uneven_ones_cost_more_than_they_bring() -> None:
    rows = [Prospects([0.9, 0.8, 0.7, 0.2], (), 0), Prospects([0.9, 0.5, 0.1], (), 0)]
    apart, alike = (
        choose_drafts(rows, lambda tokens: [0.4 * n for n in tokens], uneven=uneven, others=2, rate=1.0, usual=Usual())
        for uneven in (0.0, 1.0)
    )
    assert [each.drafted for each in apart] == [3, 2]
    assert [each.drafted for each in alike] == [3, 2]  # as one part of attention: 4 tokens and 3
    rows[1] = Prospects([0.35], (), 0)
    apart, alike = (
        choose_drafts(rows, lambda tokens: [0.4 * n for n in tokens], uneven=uneven, others=2, rate=1.0, usual=Usual())
        for uneven in (0.0, 2.0)
    )
    assert [each.drafted for each in apart] == [3, 0]
    assert [each.drafted for each in alike] == [1, 1]


@given(
    drafts=st.lists(chances, min_size=1, max_size=4),
    slope=st.floats(0, 0.5),
    uneven=st.floats(0, 2),
)
def test_to_know_what_uneven_rows_cost_is_never_worse(drafts: list[list[float]], slope: float, uneven: float) -> None:
    rows = [Prospects(reached, (), 0) for reached in drafts]

    def worth(cost_of_uneven: float) -> float:
        chosen = choose_drafts(
            rows,
            lambda tokens: [slope * n for n in tokens],
            uneven=cost_of_uneven,
            others=len(rows),
            rate=1.0,
            usual=Usual(),
        )
        counts = [each.drafted for each in chosen]
        gain = sum(sum(row.reached[:count]) for row, count in zip(rows, counts, strict=True))
        return gain - slope * sum(counts) - uneven * unevenness(counts)

    assert worth(uneven) >= max(0.0, worth(0.0)) - 1e-9


@given(drafts=chances, usual=st.builds(Usual, st.floats(1, 8), st.floats(0, 6)))
def test_a_place_is_worth_less_where_passes_give_the_row_more_than_usual(drafts: list[float], usual: Usual) -> None:
    """The next pass would check it too. A row that is like the others, or worse, loses nothing."""
    found = Prospects(drafts, (), 0, worth=0.5).worths(drafts, usual)
    whole = int(usual.checked)
    tokens = 1 + sum(drafts[:whole]) + (usual.checked % 1) * sum(drafts[whole : whole + 1])
    assert found == pytest.approx([0.5 * each * min(1, usual.tokens / tokens) for each in drafts])


def test_a_token_is_worth_what_it_saves_of_a_batch_that_nobody_joins() -> None:
    """A pass of 45 ms and 3 ms a row. Two rows are far from the end. If one of the others needs a pass less, no pass is saved,
    only its part of one."""
    passes, fixed, own = [60.0, 60.0, 30.0, 20.0], 45.0, 3.0

    def seconds(passes: Sequence[float]) -> float:
        return fixed * max(passes) + own * sum(passes)

    def worths(passes: Sequence[float], saved: float = 16.0) -> list[float]:
        return row_worths(passes, saved=saved, fixed=fixed, own=own)

    found = worths(passes)
    of_all = (fixed + 4 * own) / 4  # a token of all rows alike
    for row in (2, 3):
        saved = seconds(passes) - seconds([each - (row == other) for other, each in enumerate(passes)])
        assert found[row] * of_all == pytest.approx(saved, rel=0.2)
    assert found[0] == found[1] > 1
    assert worths([60.0] * 4, saved=1e6) == pytest.approx([1] * 4, rel=0.01)
    assert worths([0.0] * 4) == pytest.approx([1] * 4)  # others take their place
    assert worths([7.0]) == pytest.approx([1])
    # A lead of three passes is one that others make up for where drafts save many
    few, many = (worths([60.0, 57.0], saved)[1] for saved in (1.0, 100.0))
    assert few < 0.3 < 0.8 < many


@pytest.mark.parametrize("count", [2, 8, 20])
@pytest.mark.parametrize("saved", [9, 36])
def test_the_last_of_many_rows_saves_less_than_all_do_on_average(count: int, saved: int) -> None:
    """Rows whose drafts save them passes by chance: one more of each, on average, saves the last one less."""
    chance = np.random.default_rng(0)
    least, more = (chance.poisson(each, (200_000, count)).min(axis=1).mean() for each in (saved, saved + 1))
    (worth, *_) = row_worths([100.0] * count, saved=saved, fixed=1.0, own=0.0)
    assert worth == pytest.approx(more - least, abs=0.06)


def test_a_row_with_a_good_draft_does_not_take_all_of_it_at_once() -> None:
    """Four right tokens in each of two passes, by cheap passes, in place of eight in one that costs more than two of them."""
    row = Prospects([0.95**place for place in range(1, 9)], (), 0)
    seconds = {n: 1.0 + 0.02 * n + (2.2 if n > 5 else 0.0) for n in range(1, 12)}
    taken = [
        choose_drafts([row], lambda tokens: [seconds[n] for n in tokens], others=1, rate=1.2, usual=usual)[0].drafted
        for usual in (Usual(), Usual(tokens=1.5, checked=3.0))
    ]
    assert taken == [8, 4]


def test_a_block_must_be_worth_what_any_block_costs() -> None:
    """As the products of an adapter: one row's block is not, two rows' are. Drafted places are checked either way."""
    row = Prospects([0.9], [0.8, 0.4], 4)
    for count, fed in ((1, 0), (2, 4)):
        chosen = choose_drafts(
            [row] * count,
            lambda tokens: [1 + 0.01 * n for n in tokens],
            block=1.5,
            others=count,
            rate=1.0,
            usual=Usual(9),
        )
        assert chosen == [DraftChoice(1, fed)] * count
        alike = choose_drafts_alike(
            [row] * count,
            lambda tokens: [1 + 0.01 * n for n in tokens],
            block=1.5,
            widths=[1, 2, 6],
            padded_rows=count,
            rate=1.0,
            usual=Usual(9),
        )
        assert alike == [DraftChoice(1, fed)] * count


# Chances


def test_chances_begin_with_the_prior_follow_what_is_seen_and_forget() -> None:
    model = Chances(memory=500)
    row = Chances(model, memory=24)
    kind = COPIED
    assert row[kind] == pytest.approx(PRIOR[kind])
    for _ in range(200):
        row.learn([kind], right=1)
    assert row[kind] > 0.95
    assert Chances(model, memory=24)[kind] > 0.9  # other rows learn from it
    for _ in range(24):
        row.learn([kind], right=0)
    assert row[kind] < 0.6
    assert row[kind + 1] == pytest.approx(PRIOR[kind + 1])


@given(kinds=st.lists(st.integers(0, NUM_KINDS - 1), max_size=8), data=st.data())
def test_a_draft_says_something_up_to_its_first_wrong_token(kinds: list[int], data: st.DataObject) -> None:
    right = data.draw(st.integers(0, len(kinds)))
    seen, alone = Chances(memory=500), Chances(memory=500)
    seen.learn(kinds, right=right)
    for kind in kinds[:right]:
        alone.learn([kind], right=1)
    if right < len(kinds):
        alone.learn([kinds[right]], right=0)
    assert [seen[kind] for kind in range(NUM_KINDS)] == [alone[kind] for kind in range(NUM_KINDS)]
    reached = seen.reached(kinds)
    assert reached == sorted(reached, reverse=True)


def test_kinds_of_tokens() -> None:
    confidence = torch.tensor([[0.0, 0.2, 0.7, 0.95, 0.999]])
    assert kinds_of(confidence, torch.tensor(CONFIDENCES)).tolist() == [[0, 1, 3, 5, 7]]
    assert copied_kinds(torch.tensor([1, 4]), 6)[:, 1:].tolist() == [[8, 9, 10, 11, 12], [11, 12, 13, 14, 15]]


def test_an_expected_draft_is_the_mean_of_those_there_were() -> None:
    expected = ExpectedDraft(memory=16.0)
    for _ in range(100):
        expected.learn([0.5, 0.25, 0.0])
    assert expected.of(3) == pytest.approx([0.5, 0.25, 0.0], abs=0.2)
    assert ExpectedDraft(expected, memory=16.0).of(5) == expected.of(5)
    assert expected.of(5) == sorted(expected.of(5), reverse=True)
