"""What passes cost, learned from their times."""

import itertools
import random
from collections.abc import Callable, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from given_costs import on_a_cpu
from setblock.decoding.drafts.costs import KNOTS, MOST_CACHED, STEPS, LearnedCosts, TimedPass


def learn(
    costs: LearnedCosts,
    tokens: int,
    *,
    rows: int,
    cached: int,
    seconds: float,
    uneven: int = 0,
    has_block: bool = False,
    prompts: int = 0,
) -> None:
    costs.learn(TimedPass("any", tokens, rows, cached, uneven, has_block, seconds, prompts))


@pytest.mark.parametrize("disturbed", [0.0, 0.1])
@pytest.mark.parametrize("noise", [0.0, 0.2])
@pytest.mark.parametrize(
    ("seconds", "sizes", "rows", "free_tokens"),
    [
        (on_a_cpu, (1, 1, 2, 3, 5, 9, 16), 1, 24.0),
        (on_a_cpu, (8, 8, 10, 14, 20, 40), 8, 24.0),
        (on_a_cpu, (1, 1, 4, 12), 1, 512.0),
        (lambda tokens, rows: max(1.0, tokens / 256), (32, 64, 128, 256, 512, 1024), 32, 512.0),
        (lambda tokens, rows: max(1.0, tokens / 256), (1, 4, 16, 32), 1, 24.0),
    ],
    ids=["one request", "eight", "another prior", "a GPU", "a GPU, one request"],
)
def test_costs_are_learned_from_times(
    seconds: Callable[[int, int], float],
    sizes: Sequence[int],
    rows: int,
    free_tokens: float,
    noise: float,
    disturbed: float,
) -> None:
    """Within a tenth of a pass's cost, wherever there were passes; with noise, and where a tenth of them took ten times as
    long."""
    rng, costs = random.Random(0), LearnedCosts(free_tokens=free_tokens)
    for _ in range(150):
        tokens = rng.choice(sizes)
        taken = 0.02 * seconds(tokens, rows) * (1 + noise * rng.random()) * (10 if rng.random() < disturbed else 1)
        learn(costs, tokens, rows=rows, cached=100 * rows, seconds=taken)
    found = costs.seconds(sorted(set(sizes)), rows=rows, cached=100 * rows)
    assert found == sorted(found)
    for tokens, each in zip(sorted(set(sizes)), found, strict=True):
        expected = seconds(tokens, rows) / seconds(min(sizes), rows)
        assert each / found[0] == pytest.approx(expected, rel=0.1 if noise + disturbed == 0 else 0.2)


def test_what_uneven_rows_cost_is_learned() -> None:
    """Passes over 32 rows: 90 ms over one token of each, and 15 ms more as soon as one has another."""
    costs = LearnedCosts(free_tokens=24.0)
    for tokens in [32, 32, 34, 32, 36, 33, 32, 40, 32, 35] * 12:
        learn(
            costs,
            tokens,
            rows=32,
            cached=3000,
            seconds=0.09 + 0.001 * (tokens - 32) + 0.015 * (tokens > 32),
            uneven=int(tokens > 32),
        )
    plain, more = costs.seconds([32, 33], rows=32, cached=3000)
    assert more + costs.extras()[0] - plain == pytest.approx(0.016, rel=0.2)


def test_what_a_block_costs_is_learned() -> None:
    """As with an adapter: a copied token takes 1 ms, and a block of 4 takes 9 ms more."""
    costs, numbers = LearnedCosts(free_tokens=24.0), random.Random(0)
    for _ in range(150):
        drafted, has_block = numbers.randrange(5), numbers.random() < 0.5
        tokens = 1 + drafted + 4 * has_block
        learn(costs, tokens, rows=1, cached=200, seconds=0.04 + 0.001 * tokens + 0.009 * has_block, has_block=has_block)
    one, five = costs.seconds([1, 5], rows=1, cached=200)
    assert five - one == pytest.approx(0.004, rel=0.3)
    assert costs.extras()[1] == pytest.approx(0.009, rel=0.15)


def test_prompts_say_what_many_tokens_cost_before_so_many_were_drafted() -> None:
    """As in a server's first seconds: prompts, alone and beside rows of one token, of which each has an output."""
    costs, numbers = LearnedCosts(free_tokens=24.0), random.Random(0)

    def seconds(tokens: int, prompts: int) -> float:
        return (0.05 + 0.001 * tokens + 0.0005 * (tokens - prompts)) * (1 + 0.1 * numbers.random())

    for _ in range(40):
        rows, prompts = 32, numbers.choice([0, 0, numbers.randrange(100, 900)])
        tokens = rows + prompts
        learn(costs, tokens, rows=rows, cached=6400, seconds=seconds(tokens, prompts), prompts=prompts)
    plain, many = costs.seconds([32, 288], rows=32, cached=6400)
    assert many - plain == pytest.approx(1.05 * 256 * 0.0015, rel=0.35)
    assert plain == pytest.approx(1.05 * (0.05 + 32 * 0.0015), rel=0.1)


def test_a_prompt_alone_does_not_make_drafts_seem_free() -> None:
    """The first pass of a batch feeds prompts. The next one is decided by what was known before it."""
    costs = LearnedCosts(free_tokens=48.0)
    before = costs.seconds([20, 40], rows=20, cached=3000)
    learn(costs, 1600, rows=20, cached=0, seconds=1.6, prompts=1600)
    assert costs.seconds([20, 40], rows=20, cached=3000) == before
    assert before[1] > 1.1 * before[0]
    learn(costs, 20, rows=20, cached=3000, seconds=0.1)
    assert costs.seconds([20], rows=20, cached=3000) == pytest.approx([0.1], rel=0.1)


def test_costs_are_learned_where_every_pass_has_a_prompt() -> None:
    """As in a busy server: 32 rows decode in each pass, with a part of a prompt."""
    costs = LearnedCosts(free_tokens=48.0)
    for _ in range(8):
        learn(costs, 32 + 512, rows=33, cached=5000, seconds=0.9, prompts=512)
    assert costs.num_passes == 8
    assert costs.seconds([544], rows=33, cached=5000) == pytest.approx([0.9], rel=0.2)


def test_a_step_beyond_some_size_is_learned() -> None:
    """As where kernels compute 32 tokens at a time: 58 ms for up to 32 tokens of 8 rows, and 19 ms more beyond."""
    costs = LearnedCosts(free_tokens=24.0)
    for tokens in [8, 16, 24, 32, 34, 40, 48] * 30:
        learn(costs, tokens, rows=8, cached=1600, seconds=0.047 + 0.00035 * tokens + 0.019 * (tokens > 32))
    within, beyond = costs.seconds([32, 34], rows=8, cached=1600)
    assert beyond - within == pytest.approx(0.0197, rel=0.25)


@given(seen=st.lists(st.tuples(st.integers(1, 3000), st.floats(0.5, 2)), min_size=1, max_size=40))
def test_seconds_are_the_sum_that_the_coefficients_say(seen: list[tuple[int, float]]) -> None:
    costs = LearnedCosts(free_tokens=24.0)
    for tokens, seconds in seen:
        learn(costs, tokens, rows=7, cached=900, seconds=seconds)
    costs.seconds([1], rows=7, cached=900)  # fits what was seen last
    start, *others, per_output, per_row, per_cached, _, _ = costs._coefficients
    slopes, steps = others[: len(KNOTS)], others[len(KNOTS) :]
    for tokens in (1, 3, 7, 8, 33, 1024, 1025, 2500):
        inside = [max(0, min(tokens, end) - knot) for knot, end in itertools.pairwise([*KNOTS, 10**9])]
        expected = start + sum(a * b for a, b in zip(slopes, inside, strict=True))
        expected += per_output * tokens + per_row * 7 + per_cached * 900 / MOST_CACHED
        expected += sum(step for step, most in zip(steps, STEPS, strict=True) if tokens > most)
        least = 0.1 * min(seconds for _, seconds in seen)
        assert costs.seconds([tokens], rows=7, cached=900) == pytest.approx([max(least, expected)])


def test_a_pass_that_surprises_is_learned_at_once() -> None:
    """After many passes over whole blocks, a plain one takes twice as long as their curve says."""
    costs, rng = LearnedCosts(free_tokens=24.0), random.Random(0)
    for _ in range(100):
        tokens = rng.choice((160, 320, 640))
        learn(costs, tokens, rows=20, cached=2000, seconds=0.0001 * tokens)
    wrong = costs.seconds([20], rows=20, cached=2000)[0]
    learn(costs, 20, rows=20, cached=2000, seconds=2 * wrong)
    assert costs.seconds([20], rows=20, cached=2000) == pytest.approx([2 * wrong], rel=0.2)
    assert costs.seconds([320], rows=20, cached=2000) == pytest.approx([0.032], rel=0.05)


@pytest.mark.parametrize("seed", range(100))
def test_a_pass_always_takes_time(seed: int) -> None:
    """Of a few uneven times, as on a busy machine, a fit may put all down to tokens that a plain pass hasn't. To decide divides
    by its time."""
    rng, costs = random.Random(seed), LearnedCosts(free_tokens=24.0)
    for _ in range(6):
        tokens, seconds = rng.choice([1, 2, 3, 5, 9, 17, 33]), 10 ** rng.uniform(-4, 0)
        learn(costs, tokens, rows=1, cached=rng.randint(5, 900), seconds=seconds)
        assert min(costs.seconds([1, 2, 16], rows=1, cached=rng.randint(0, 900))) > 0


def test_costs_follow_a_machine_that_changes() -> None:
    costs = LearnedCosts(free_tokens=24.0)
    for slope in (0.0, 0.1):
        for turn in range(600):
            tokens = (1, 4, 16)[turn % 3]
            learn(costs, tokens, rows=1, cached=50, seconds=0.01 * (1 + slope * tokens))
    one, many = costs.seconds([1, 16], rows=1, cached=50)
    assert many / one == pytest.approx(2.6 / 1.1, rel=0.1)


@pytest.mark.parametrize("rows", [1, 8, 20, 32])
def test_plain_passes_alone_do_not_make_larger_ones_seem_free(rows: int) -> None:
    """Rows and cached positions may then explain all of their times. What larger passes cost still follows from the prior:
    more, but not so much that none would ever be tried. And what was seen is known, of whatever order of magnitude."""
    for seed, unit in itertools.product(range(20), (1e-3, 1.0)):
        rng, costs = random.Random(seed), LearnedCosts(free_tokens=48.0)
        for count in range(48):
            disturbed = 1.6 if rng.random() < 0.05 else 1.0
            learn(costs, rows, rows=rows, cached=rows * (60 + count), seconds=unit * disturbed * rng.uniform(0.9, 1.1))
        plain, larger = costs.seconds([rows, 16 * rows], rows=rows, cached=rows * 84)
        assert plain == pytest.approx(unit, rel=0.1)
        assert larger - plain == pytest.approx(plain * 15 * rows / 48, rel=0.6)


@pytest.mark.parametrize("times", [1.0, 3.0])
def test_costs_begin_with_those_of_similar_passes_and_leave_them(times: float) -> None:
    """Known for eight rows, they are for 24, in order of magnitude. What these cost, a few passes tell."""
    rng, known = random.Random(0), LearnedCosts(free_tokens=48.0)
    for _ in range(60):
        tokens = rng.choice((8, 8, 12, 24, 48))
        learn(known, tokens, rows=8, cached=800, seconds=0.05 * (1 + tokens / 40) * rng.uniform(0.95, 1.05))
    costs = LearnedCosts(free_tokens=48.0, like=known)
    sizes = (24, 48, 96)
    for each, tokens in zip(costs.seconds(sizes, rows=24, cached=2400), sizes, strict=True):
        assert each == pytest.approx(0.05 * (1 + tokens / 40), rel=0.6)
    for _ in range(16):
        tokens = rng.choice(sizes)
        learn(costs, tokens, rows=24, cached=2400, seconds=0.05 * times * (1 + tokens / 40))
    for each, tokens in zip(costs.seconds(sizes, rows=24, cached=2400), sizes, strict=True):
        assert each == pytest.approx(0.05 * times * (1 + tokens / 40), rel=0.2)
