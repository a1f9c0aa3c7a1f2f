"""Calibration: the error rate that it promises, where all settings lose just too much, and what it finds where some don't."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import binom

from evaluation.sweeps import LENGTH, point, row, sweep_of
from setblock.errors import ParameterError
from setblock.evaluation.calibration import Tolerance, calibrate, order_of_tests, paired_p_value, tolerance_of

LOOSE = Tolerance("accuracy", 0.1, confidence=0.9)


def random_sweep(rng, *, lost, gained=0.0, examples=160, settings=6, exact=None):
    """Settings that lose and gain answers independently, each faster than the last; differing tokens go with what is lost."""
    ntp = (rng.random(examples) < 0.7).astype(int)
    rows = []
    for index in range(settings):
        rate = lost[index] if isinstance(lost, list) else lost
        draw = rng.random(examples)
        # Shares of all examples, not of those that NTP has right
        correct = np.where(ntp == 1, draw >= rate / 0.7, draw < gained / 0.3).astype(int)
        differing = np.where(correct != ntp, rng.integers(1, LENGTH, examples), 0)
        rows.append(row(point(0.1 * (index + 1)), correct, [10 - index] * examples, differing))
    if exact is not None:
        rows.append(row(point(1.0, method="exact"), ntp, [exact] * examples, [0] * examples))
    return sweep_of([int(each) for each in ntp], rows)


@pytest.mark.parametrize(("lost", "gained"), [(0.1, 0.0), pytest.param(0.16, 0.06, marks=pytest.mark.nightly)])
def test_where_all_lose_just_too_much_none_passes_but_rarely(lost, gained):
    """Were each setting tested at the full error rate without an order, one of six would pass in nearly half of all sweeps."""
    rng, trials = np.random.default_rng(0), 400
    wrong = sum(
        any(test.passed for test in calibrate(random_sweep(rng, lost=lost, gained=gained), LOOSE, seed=seed).tests)
        for seed in range(trials)
    )
    limit = 0.1 + 2.6 * (0.1 * 0.9 / trials) ** 0.5  # 99.5% of a binomial
    assert wrong / trials <= limit
    assert wrong > 0.02 * trials  # nor is it safe for want of any power


def test_tokens_keep_the_error_rate_too():
    rng, trials = np.random.default_rng(1), 300
    tolerance = Tolerance("tokens", 0.05, confidence=0.9)
    wrong = 0
    for seed in range(trials):
        differing = (rng.random(160) < 0.1) * LENGTH // 2  # half an answer in a tenth of them: 5%
        sweep = sweep_of([1] * 160, [row(point(1.0), [1] * 160, [5] * 160, differing)])
        wrong += calibrate(sweep, tolerance, seed=seed).chosen is not None
    assert wrong / trials <= 0.1 + 2.6 * (0.1 * 0.9 / trials) ** 0.5


def test_the_fastest_that_is_safe_is_found():
    rng = np.random.default_rng(2)
    found = calibrate(random_sweep(rng, lost=[0.0, 0.0, 0.01, 0.5, 0.6, 0.7], examples=400), LOOSE)
    assert found.chosen is not None
    assert found.chosen.point == point(0.1 * 3)
    assert [test.passed for test in found.tests] == [True, True, True, False]
    assert found.chosen is found.passed
    assert found.chosen.nfe_speedup == LENGTH / 8
    assert (found.num_ordering, found.num_testing) == (100, 300)


@pytest.mark.parametrize(("passes", "is_chosen"), [(9, False), (4, True)])
def test_exact_mode_is_chosen_where_it_is_faster(passes, is_chosen):
    found = calibrate(random_sweep(np.random.default_rng(2), lost=0.0, exact=passes), LOOSE)
    assert found.chosen is (found.exact if is_chosen else found.passed)
    assert found.exact.nfe_speedup == LENGTH / passes
    assert found.chosen.nfe_speedup == LENGTH / (passes if is_chosen else 5)
    recorded = found.records(domain="d", fingerprint="f")
    assert [(each.method, each.tested, each.nfe_speedup) for each in recorded] == [
        ("sbd", True, LENGTH / 5),
        ("exact", False, LENGTH / passes),
    ]


def test_where_nothing_passes_exact_mode_is_left():
    found = calibrate(random_sweep(np.random.default_rng(3), lost=0.5, exact=15), LOOSE)
    assert [test.passed for test in found.tests] == [False]
    assert found.chosen is found.exact
    assert [each.method for each in found.records(domain="d", fingerprint="f")] == ["exact"]
    without = calibrate(random_sweep(np.random.default_rng(3), lost=0.5), LOOSE)
    assert without.chosen is None
    assert without.records(domain="d", fingerprint="f") == []


def test_the_order_is_found_on_other_examples_than_the_tests():
    """What the tests look at may say what it will: the order stays."""
    rng = np.random.default_rng(4)
    sweep = random_sweep(rng, lost=[0.0, 0.02, 0.04, 0.06, 0.08, 0.1])
    examples = list(range(40))
    order = order_of_tests(sweep[1:], examples)
    worse = []
    for each in sweep[1:]:
        spoilt = replace(each.outcomes, correct=each.outcomes.correct[:40] + (0,) * 120)
        worse.append(replace(each, outcomes=spoilt))
    assert [each.point for each in order_of_tests(worse, examples)] == [each.point for each in order]


def test_what_is_slower_and_no_safer_is_not_tested():
    n = 40
    careful, same, slower, careless = (
        row(point(gamma), [1] * n, [passes] * n, [differing] * n)
        for gamma, passes, differing in ((0.1, 10, 0), (0.2, 10, 1), (0.3, 15, 2), (0.4, 5, 3))
    )
    sweep = sweep_of([1] * n, [careless, slower, same, careful])
    points = [each.point for each in order_of_tests(sweep[1:], range(n))]
    assert points == [careful.point, careless.point]


def test_seeds_choose_other_examples_and_repeat_themselves():
    sweep = random_sweep(np.random.default_rng(5), lost=0.05)
    one, again, other = (calibrate(sweep, LOOSE, seed=seed) for seed in (1, 1, 2))
    assert one == again
    assert [test.p_value for test in one.tests] != [test.p_value for test in other.tests]


def test_too_few_examples_are_reported():
    LOOSE.check_enough(40)
    with pytest.raises(
        ParameterError,
        match=r"20 examples are too few to show at most 10 points of accuracy lost, 90% confidence.*use at least (\d+)",
    ) as error:
        LOOSE.check_enough(20)
    least = int(str(error.value).rpartition("use at least ")[2])
    LOOSE.check_enough(least)
    testing = 23  # three quarters, rounded up
    assert paired_p_value(0, 0, testing, tolerance=0.1) <= 0.1 < paired_p_value(0, 0, testing - 2, tolerance=0.1)
    with pytest.raises(ParameterError, match="too few"):
        LOOSE.check_enough(least - 3)


def test_shares_of_tokens_pass_where_few_answers_differ():
    """A third of an answer differs in twelve of 1,000, so 0.4% of tokens: by the mean alone, nothing is shown (below)."""
    differing = [LENGTH * 3 // 10] * 16 + [0] * 1317
    sweep = sweep_of([1] * 1333, [row(point(1.0), [1] * 1333, [5] * 1333, differing)])
    tolerance = Tolerance("tokens", 0.01, confidence=0.95)
    passed = sum(calibrate(sweep, tolerance, seed=seed).chosen is not None for seed in range(60))
    assert passed > 30
    assert hoeffding_bentkus(0.0036, 1000, 0.01) > 0.05


def hoeffding_bentkus(mean, n, tolerance):
    """The p-value of Bates et al. 2021, which the mean is all that it looks at."""
    kl = mean * math.log(mean / tolerance) + (1 - mean) * math.log((1 - mean) / (1 - tolerance))
    return min(math.exp(-n * kl), math.e * binom.cdf(math.ceil(n * mean), n, tolerance))


def test_tolerances_are_read():
    assert tolerance_of("tokens=1", confidence=0.9) == Tolerance("tokens", 0.01, confidence=0.9)
    for wrong in ("speed=1", "accuracy", "accuracy=x", "accuracy=nan"):
        with pytest.raises(ParameterError, match="--tolerance must be accuracy=PERCENT or tokens=PERCENT"):
            tolerance_of(wrong, confidence=0.9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"most": 0.0}, "the tolerance of accuracy must be above 0% and below 100%, not 0.0000%"),
        ({"most": 1.0}, "the tolerance of accuracy must be above 0%"),
        ({"confidence": 0.9999}, "confidence must be between 0.5 and 0.999, not 0.9999"),
        ({"confidence": 0.4}, "confidence must be between 0.5"),
    ],
)
def test_tolerances_out_of_range(options, message):
    with pytest.raises(ParameterError, match=message):
        Tolerance(**options)
