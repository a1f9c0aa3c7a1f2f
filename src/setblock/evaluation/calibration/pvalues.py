"""Compute p-values of the claim that a setting loses too much, from what it lost on examples drawn like those to come.

Each is valid for any number of examples, without asymptotics: where the mean loss is `tolerance` or more, a p-value is at
most u with a probability of at most u. Examples are independent and identically distributed; nothing else is assumed.
Knows losses. Knows nothing of settings or models.
"""

import math
from collections.abc import Sequence
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

_NUISANCE_ERROR = 5e-4  # spent on bounding the nuisance parameter (Berger and Boos 1994); part of the p-value
_ANGLE_STEP = 0.002  # how finely the nuisance parameter is searched: about 0.001 near a p-value of 0.05, always upwards
_TAIL = 1e-12  # probability of outcomes that are counted as rejected without being looked at
_BETS = 64


@lru_cache(maxsize=4096)
def paired_p_value(worse: int, better: int, examples: int, *, tolerance: float) -> float:
    """Return the p-value of the claim that P(loss = 1) - P(loss = -1) is at least `tolerance`: an exact unconditional
    test for paired answers.

    The statistic is the score statistic of paired proportions (Tango 1998). Its distribution depends on one nuisance
    parameter, q = P(loss = -1); the p-value is the largest over a confidence interval of q, plus what that interval may miss
    (Berger and Boos 1994). The search over q is bounded between its grid points, by the angle between the distributions of
    the outcomes there, so that rounding up is all that the grid does.

    Args:
        worse, better: examples with loss 1, and with loss -1; the others lost nothing.
        examples: how many in all.
        tolerance: in 0..1, both excluded.
    """
    from scipy.stats import binom

    assert 0 < tolerance < 1 and min(worse, better) >= 0 and worse + better <= examples
    if worse - better >= examples * tolerance:
        return 1.0
    # 1. Where the nuisance parameter is
    low, high = _share_interval(better, examples, error=_NUISANCE_ERROR)
    high = min(high, (1 - tolerance) / 2)
    low = min(low, high)
    # 2. What counts as at least as extreme, as the most `worse` that does for each `better`
    most_better = int(binom.isf(_TAIL, examples, high))
    most_worse = _extreme(worse, better, examples, most_better=most_better, tolerance=tolerance)
    # 3. Its probability where the claim only just holds (with the same q and more worse answers it is smaller still)
    largest = _largest_probability(most_worse, examples, tolerance=tolerance, low=low, high=high)
    return min(1.0, largest + _TAIL + _NUISANCE_ERROR)


def mean_p_value(losses: Sequence[float], *, tolerance: float) -> float:
    """Return the p-value of the claim that the mean of losses in 0..1 is at least `tolerance`.

    One over a wealth that, if the claim holds, is at most 1 on average: that of gamblers who stake a fixed share of it on
    each loss being below the tolerance (Waudby-Smith and Ramdas 2023, with bets that look at nothing). Half of the wealth is
    staked as high as can be, which is best where hardly anything was lost; the rest at 63 lower shares. Where losses are small
    and few, this is far below what Hoeffding's or Bentkus's inequality gives, which know the mean of the losses alone. The
    order of the losses does not matter.

    Args:
        tolerance: in 0..1, both excluded.
    """
    assert 0 < tolerance < 1
    values = np.asarray(losses, dtype=np.float64)
    assert ((values >= 0) & (values <= 1)).all()
    bets = np.arange(1, _BETS + 1) / _BETS / (1 - tolerance)  # at the largest, a loss of 1 takes all
    log_shares = np.log(np.append(np.full(_BETS - 1, 0.5 / (_BETS - 1)), 0.5))
    with np.errstate(divide="ignore"):
        log_wealth = log_shares + np.log1p(np.maximum(bets[:, None] * (tolerance - values), -1.0)).sum(axis=1)
    top = log_wealth.max()
    if top == -math.inf:
        return 1.0
    return math.exp(min(0.0, -top - math.log(np.exp(log_wealth - top).sum())))


def _share_interval(successes: int, trials: int, *, error: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share, which misses it with a probability of at most `error`."""
    from scipy.stats import binomtest

    interval = binomtest(successes, trials).proportion_ci(1 - error, method="exact")
    return float(interval.low), float(interval.high)


def _extreme(worse: int, better: int, examples: int, *, most_better: int, tolerance: float) -> NDArray[np.int64]:
    """Return [most_better + 1] for each number of better answers the largest number of worse ones that is at least as
    extreme as what was seen; -1 where none is.

    Made so that with an outcome every one with fewer worse and more better answers is in it too, whether or not the statistic
    says so: then it is least likely not to happen exactly where the claim only just holds.
    """
    b = np.arange(most_better + math.ceil(examples * tolerance) + 1)[:, None]
    c = np.arange(most_better + 1)[None, :]
    seen = float(_score(np.array(worse), np.array(better), examples, tolerance))
    extreme = (_score(b, c, examples, tolerance) <= seen + 1e-9) & (b + c <= examples)
    last = np.where(extreme.any(axis=0), extreme.shape[0] - 1 - extreme[::-1].argmax(axis=0), -1)
    largest: NDArray[np.int64] = np.maximum.accumulate(last)
    return largest


def _score(worse: NDArray[np.int64], better: NDArray[np.int64], examples: int, tolerance: float) -> Floats:
    """Return Tango's statistic: how many standard errors the difference is above the tolerance, the error taken where
    the claim only just holds. Negative speaks against the claim."""
    n = examples
    linear = worse + better - tolerance * (2 * n - worse + better)
    q = (linear + np.sqrt(linear**2 + 8 * n * better * tolerance * (1 - tolerance))) / (4 * n)  # the likeliest there
    variance = n * (2 * np.maximum(q, 0) + tolerance - tolerance**2)
    score: Floats = (worse - better - n * tolerance) / np.sqrt(variance)
    return score


def _largest_probability(
    most_worse: NDArray[np.int64], examples: int, *, tolerance: float, low: float, high: float
) -> float:
    """Return an upper bound of P(worse <= most_worse[better]) over q in low..high, where P(worse) = q + tolerance.

    An event's probabilities P and P' under two distributions obey |asin sqrt P - asin sqrt P'| <= acos of the distributions'
    Bhattacharyya coefficient, which is the n-th power of one example's. Intervals in which the event could be more likely
    than at the best point so far, by more than a step, are halved.
    """
    from scipy.stats import multinomial

    worse = np.concatenate([np.arange(each + 1) for each in most_worse])
    better = np.repeat(np.arange(len(most_worse)), most_worse + 1)
    same = examples - worse - better
    inside = same >= 0
    outcomes = np.stack([worse[inside], better[inside], same[inside]], axis=-1)  # [outcomes, 3]

    def angle(q: float) -> float:
        mass = multinomial.pmf(outcomes, examples, [q + tolerance, q, max(0.0, 1 - 2 * q - tolerance)])
        return math.asin(math.sqrt(min(1.0, float(mass.sum()))))

    def between(q: float, other: float) -> float:
        pairs = ((q + tolerance, other + tolerance), (q, other), (1 - 2 * q - tolerance, 1 - 2 * other - tolerance))
        overlap = sum(math.sqrt(max(0.0, one) * max(0.0, two)) for one, two in pairs)
        return math.acos(min(1.0, overlap) ** examples)

    roots = np.linspace(math.sqrt(low), math.sqrt(high), 33)
    points = [(float(root**2), angle(float(root**2))) for root in roots]
    best = max(each for _, each in points)
    bound = best
    intervals = list(pairwise(points))
    while intervals:
        start, end = intervals.pop()
        above = max(start[1], end[1]) + between(start[0], end[0])
        if above <= best + _ANGLE_STEP:
            bound = max(bound, above)
            continue
        middle = (start[0] + end[0]) / 2
        at_middle = (middle, angle(middle))
        best = max(best, at_middle[1])
        intervals += [(start, at_middle), (at_middle, end)]
    return math.sin(min(bound, math.pi / 2)) ** 2
