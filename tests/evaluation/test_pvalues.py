"""P-values: what plain enumeration gives, and never too small where the claim they are of holds."""

import math
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binom, binomtest

from setblock.evaluation.calibration import _share_interval, paired_p_value

LEVELS = (0.01, 0.05, 0.1, 0.2, 0.5)
SMALL = (24, 0.15)  # examples, tolerance: enough for p-values down to 0.02, few enough to go through all outcomes


def binomial(k, n, p):
    return math.comb(n, k) * p**k * (1 - p) ** (n - k)


def trinomial(b, c, n, p, q):
    return math.comb(n, b) * math.comb(n - b, c) * p**b * q**c * max(0.0, 1 - p - q) ** (n - b - c)


def naive_score(b, c, n, tolerance):
    """Tango's statistic, the likelihood maximised by search."""

    def likelihood(q):
        params = ((b, q + tolerance), (c, q), (n - b - c, 1 - 2 * q - tolerance))
        return sum(count * math.log(max(chance, 1e-300)) for count, chance in params if count)

    low, high = 0.0, (1 - tolerance) / 2
    for _ in range(200):
        one, two = low + (high - low) / 3, high - (high - low) / 3
        low, high = (one, high) if likelihood(one) < likelihood(two) else (low, two)
    q = (low + high) / 2
    return (b - c - n * tolerance) / math.sqrt(n * (2 * q + tolerance - tolerance**2))


def naive_paired(b, c, n, tolerance, *, error=5e-4, steps=400):
    """The same test by going through all outcomes and many nuisance parameters."""
    if b - c >= n * tolerance:
        return 1.0
    outcomes = [(i, j) for i in range(n + 1) for j in range(n + 1 - i)]
    seen = naive_score(b, c, n, tolerance)
    core = [(i, j) for i, j in outcomes if i - j < n * tolerance and naive_score(i, j, n, tolerance) <= seen + 1e-7]
    extreme = [(i, j) for i, j in outcomes if any(i <= x and j >= y for x, y in core)]
    candidates = [(1 - tolerance) / 2 * (k / steps) ** 2 for k in range(steps + 1)]
    kept = [
        q
        for q in candidates
        if sum(binomial(i, n, q) for i in range(c + 1)) >= error / 2
        and sum(binomial(i, n, q) for i in range(c, n + 1)) >= error / 2
    ]
    return min(1.0, error + max(sum(trinomial(i, j, n, q + tolerance, q) for i, j in extreme) for q in kept))


@pytest.mark.parametrize(("b", "c"), [(0, 0), (0, 1), (0, 4), (1, 0), (1, 1), (1, 3), (2, 5)])
def test_paired_is_the_enumeration(b, c):
    n, tolerance = 14, 0.25
    plain = naive_paired(b, c, n, tolerance)
    assert plain - 1e-4 <= paired_p_value(b, c, n, tolerance=tolerance) <= plain + 0.004


@cache
def all_paired(n, tolerance):
    return {(b, c): paired_p_value(b, c, n, tolerance=tolerance) for b in range(n + 1) for c in range(n + 1 - b)}


@pytest.mark.parametrize("q", [0.0, 0.005, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.425])
@pytest.mark.parametrize("more", [0.0, 0.03])
def test_paired_is_valid_wherever_the_claim_holds(q, more):
    n, tolerance = SMALL
    p = q + tolerance + more
    if p + q > 1:
        pytest.skip("no such distribution")
    for level in LEVELS:
        error = sum(trinomial(b, c, n, p, q) for (b, c), value in all_paired(n, tolerance).items() if value <= level)
        assert error <= level + 1e-9


def test_paired_is_not_valid_by_being_useless():
    n, tolerance = SMALL
    error = max(
        sum(trinomial(b, c, n, q + tolerance, q) for (b, c), value in all_paired(n, tolerance).items() if value <= 0.1)
        for q in (0.0, 0.02, 0.05, 0.1, 0.2)
    )
    assert error > 0.05
    # Ten answers differ, five each way: counting the five that were lost alone shows nothing.
    assert paired_p_value(5, 5, 400, tolerance=0.02) < 0.1 < 0.15 < binom.cdf(5, 400, 0.02)
    # Where nothing was gained, the plain binomial test is the best there is, and this one is no more than a step worse.
    assert paired_p_value(3, 0, 400, tolerance=0.02) == pytest.approx(binom.cdf(3, 400, 0.02), abs=0.003)


@given(st.integers(0, 24), st.integers(0, 24))
def test_paired_grows_with_what_was_lost(b, c):
    n, tolerance = SMALL
    values = all_paired(n, tolerance)
    if b + c < n:
        assert values[b, c] <= values[b + 1, c] + 0.004


def test_nothing_can_be_shown_where_all_is_lost():
    assert paired_p_value(10, 0, 100, tolerance=0.1) == 1


@pytest.mark.parametrize(("count", "trials"), [(0, 600), (5, 1000), (600, 600), (220, 2250)])
def test_the_interval_is_clopper_and_pearson_s(count, trials):
    theirs = binomtest(count, trials).proportion_ci(1 - 5e-4, method="exact")
    assert _share_interval(count, trials, error=5e-4) == pytest.approx((theirs.low, theirs.high), abs=1e-9)
