import pytest
from hypothesis import given
from hypothesis import strategies as st

from setblock.evaluation.result import wilson_interval


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (10, 10, 0.7225, 1.0)],
)
def test_published_values(successes, trials, low, high):
    assert wilson_interval(successes, trials) == pytest.approx((low, high), abs=5e-5)


@given(st.integers(1, 2000), st.floats(0, 1))
def test_it_holds_the_share_and_narrows_with_trials(trials, share):
    successes = round(share * trials)
    low, high = wilson_interval(successes, trials)
    assert 0 <= low <= successes / trials <= high <= 1
    wider_low, wider_high = low, high
    low, high = wilson_interval(4 * successes, 4 * trials)
    assert high - low < wider_high - wider_low
