"""Calibration: find the fastest setting of a sweep whose loss is within a tolerance, with a statistical guarantee.

The method is Learn then Test (Angelopoulos et al. 2021) with fixed-sequence testing. For each setting in a fixed order, the
hypothesis that it loses more than the tolerance is tested at the full error rate; testing stops at the first hypothesis that is
not rejected. Separate examples give the order (Pareto testing, Laufer-Goldshtein et al. 2022). The test is exact for paired
counts. docs/calibration.md states the guarantee.
"""

import math
import random
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from itertools import count, pairwise
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError
from setblock.evaluation.operating_point import point_to_json
from setblock.evaluation.result import Result
from setblock.model.protocol.sbd_config import CalibratedSetting

_ORDERING_SHARE = 0.25  # of the examples, for the order of the tests
_FASTER = 1.05  # a setting worth a test is at least this much faster than the last one before it
_NUISANCE_ERROR = 5e-4  # spent on bounding the nuisance parameter (Berger and Boos 1994); part of the p-value
_ANGLE_STEP = 0.002  # how finely the nuisance parameter is searched: about 0.001 near a p-value of 0.05, always upwards
_MOST_CONFIDENCE = 0.999  # p-values are never below _NUISANCE_ERROR
_TAIL = 1e-12  # bounds the probability of the outcomes that the test does not look at


@dataclass(frozen=True)
class Tolerance:
    """The loss that is tolerated on new examples drawn like those of the sweep."""

    # `accuracy`: plain decoding's share of right answers minus the setting's. `tokens`: the share of an answer's tokens that
    # differ from plain decoding's, averaged over answers
    measure: Literal["accuracy", "tokens"] = "accuracy"
    most: float = 0.005  # in 0..1, both excluded
    # The probability, over the draw of the sweep's examples, that no setting which loses more is chosen
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if not 0 < self.most < 1:
            raise ParameterError(
                f"the tolerance of {self.measure} must be above 0% and below 100%, not {self.most:.4%}"
            )
        if not 0.5 <= self.confidence <= _MOST_CONFIDENCE:
            raise ParameterError(f"confidence must be between 0.5 and {_MOST_CONFIDENCE}, not {self.confidence:g}")

    @property
    def text(self) -> str:
        """Return the tolerance in a few words."""
        what = "points of accuracy lost" if self.measure == "accuracy" else "% of tokens not plain decoding's"
        return f"at most {100 * self.most:g} {what}, {100 * self.confidence:g}% confidence"

    def check_enough(self, examples: int) -> None:
        """Raise `ParameterError` if no setting could pass on so few examples."""

        def enough(testing: int) -> bool:
            return paired_p_value(0, 0, testing, tolerance=self.most) <= 1 - self.confidence

        if not enough(max(1, examples - round(_ORDERING_SHARE * examples))):
            top = next(2**i for i in count() if enough(2**i))
            least = bisect_left(range(top), True, lo=1, key=enough)
            needed = math.ceil((least + 1) / (1 - _ORDERING_SHARE))
            raise ParameterError(f"{examples} examples are too few to show {self.text}: use at least {needed}")


def tolerance_of(text: str, *, confidence: float) -> Tolerance:
    """Parse a tolerance `MEASURE=PERCENT`; raise `ParameterError` if it is malformed or out of range."""
    measure, _, percent = text.partition("=")
    try:
        most = float(percent) / 100
    except ValueError:
        most = math.nan
    if measure not in ("accuracy", "tokens") or math.isnan(most):
        raise ParameterError(
            f"--tolerance must be accuracy=PERCENT or tokens=PERCENT, such as accuracy=0.5, not {text!r}"
        )
    return Tolerance("accuracy" if measure == "accuracy" else "tokens", most, confidence)


@dataclass(frozen=True)
class Tested:
    """The test of one setting; or exact mode, which loses nothing and needs no test."""

    point: DecodingSettings
    loss: float  # the mean on the examples of the test
    p_value: float | None  # of the hypothesis that the setting loses more than is tolerated; None for exact mode
    passed: bool  # whether this hypothesis and all before it were rejected
    nfe_speedup: float


@dataclass(frozen=True)
class Calibration:
    """The result of a calibration."""

    tolerance: Tolerance
    tests: Sequence[Tested]  # in order; the last one failed, unless all passed
    passed: Tested | None  # the fastest setting that passed
    # The fastest setting of method `exact`, which meets any tolerance by construction; None if the sweep has none
    exact: Tested | None
    num_ordering: int  # number of examples that determined the order
    num_testing: int  # number of examples of the tests

    @property
    def chosen(self) -> Tested | None:
        """Return the faster of `passed` and exact mode; None if there is neither."""
        return _fastest([each for each in (self.exact, self.passed) if each is not None])

    def records(self, *, domain: str, fingerprint: str) -> list[CalibratedSetting]:
        """Return what a checkpoint records: the fastest setting that passed and exact mode, each if there is one."""
        return [
            CalibratedSetting(
                domain=domain,
                point=point_to_json(found.point),
                tolerance=self.tolerance.text,
                tested=found is self.passed,
                nfe_speedup=found.nfe_speedup,
                num_examples=self.num_testing,
                fingerprint=fingerprint,
            )
            for found in filter(None, (self.passed, self.exact))
        ]

    def to_json(self) -> dict[str, Any]:
        """Return the chosen setting and each test, for JSON."""
        chosen = self.chosen
        return {
            "tolerance": asdict(self.tolerance),
            "chosen": chosen and point_to_json(chosen.point),
            "tested": chosen is not None and chosen is self.passed,
            "nfe_speedup": chosen and chosen.nfe_speedup,
            "exact_nfe_speedup": self.exact and self.exact.nfe_speedup,
            "num_ordering": self.num_ordering,
            "num_testing": self.num_testing,
            "tests": [{**asdict(test), "point": point_to_json(test.point)} for test in self.tests],
        }


def calibrate(
    results: Sequence[Result], tolerance: Tolerance, *, seed: int = 0, examples: Sequence[int] | None = None
) -> Calibration:
    """Find the fastest setting of a sweep that meets a tolerance. Raise `ParameterError` if there are too few examples for any
    setting to pass, or the tolerance is of accuracy and the answers aren't judged.

    If future examples are drawn like those of the sweep, the chosen setting loses more than is tolerated with a probability
    of at most 1 - confidence over the draw of the sweep's examples, for any number of settings.

    Args:
        results: the results of a sweep, plain decoding's first.
        seed: splits the examples between the order and the tests, and rounds shares of tokens.
        examples: the indices of the examples to use; all by default.
    """
    # 1. Two sets of examples
    chance = random.Random(seed)
    shuffled = list(range(results[0].num_examples) if examples is None else examples)
    chance.shuffle(shuffled)
    num_ordering = round(_ORDERING_SHARE * len(shuffled))
    ordering, testing = shuffled[:num_ordering], shuffled[num_ordering:]
    tolerance.check_enough(len(shuffled))
    if tolerance.measure == "accuracy" and results[0].accuracy is None:
        raise ParameterError("these examples have no right answers: give a tolerance of tokens")

    # 2. The tests: the first set gives the order, the second is tested on
    draws = [chance.random() for _ in testing]
    tests: list[Tested] = []
    for result in order_of_tests([each for each in results if each.point.method == "sbd"], ordering):
        losses = result.lost if tolerance.measure == "accuracy" else result.differing
        seen = [losses[index] for index in testing]
        # A share is rounded to 1 with a probability equal to itself, else to 0: the mean stays the same
        worse = sum(draw < loss for draw, loss in zip(draws, seen, strict=True))
        better = sum(loss < 0 for loss in seen)
        p_value = paired_p_value(worse, better, len(seen), tolerance=tolerance.most)
        passed = p_value <= 1 - tolerance.confidence
        tests.append(Tested(result.point, sum(seen) / len(seen), p_value, passed, _speedup(result, testing)))
        if not passed:
            break

    # 3. The fastest setting; exact mode needs no test
    swept = [each for each in results if each.point.method == "exact"]
    exact = _fastest([Tested(each.point, 0.0, None, True, _speedup(each, testing)) for each in swept])
    fastest = _fastest([test for test in tests if test.passed])
    return Calibration(tolerance, tests, fastest, exact, len(ordering), len(testing))


def _fastest(tests: Sequence[Tested]) -> Tested | None:
    return max(tests, key=lambda test: test.nfe_speedup, default=None)


def order_of_tests(results: Sequence[Result], examples: Sequence[int]) -> list[Result]:
    """Return the results to test, from careful to careless, judged on `examples` alone. Carelessness is the accuracy lost, then
    the share of tokens that differ from plain decoding's, which ranks settings that lost no answer. A setting that is less than
    `_FASTER` times as fast as one before it is left out."""
    if not examples:
        return list(results)

    def carelessness(result: Result) -> float:
        differing = result.differing
        lost = [0] * len(differing) if result.accuracy is None else result.lost
        return (max(0, sum(lost[i] for i in examples)) + sum(differing[i] for i in examples)) / len(examples)

    order: list[Result] = []
    fastest = 1 / _FASTER  # slower than plain decoding is not worth it
    for result in sorted(results, key=lambda each: (carelessness(each), _speedup(each, examples))):
        speedup = _speedup(result, examples)
        if speedup >= fastest * _FASTER:
            order.append(result)
            fastest = speedup
    return order


def _speedup(result: Result, examples: Sequence[int]) -> float:
    return result.nfe_speedup_on(examples) or 1.0


@lru_cache(maxsize=4096)
def paired_p_value(worse: int, better: int, examples: int, *, tolerance: float) -> float:
    """Return the p-value of the hypothesis that P(loss = 1) - P(loss = -1) is at least `tolerance`, where `worse` examples have
    loss 1, `better` ones -1, and the others 0. It is an exact unconditional test for paired counts, valid for any number of
    independent and identically distributed examples.

    The statistic is the score statistic of paired proportions (Tango 1998). Its distribution depends on one nuisance
    parameter, q = P(loss = -1); the p-value is the largest over a confidence interval of q, plus that interval's error
    (Berger and Boos 1994). If `better` is 0, it is the binomial test's.
    """
    n = examples
    assert 0 < tolerance < 1 and min(worse, better) >= 0 and worse + better <= n
    if worse - better >= n * tolerance:
        return 1.0
    # 1. The Clopper-Pearson interval of the nuisance parameter
    low, high = (min(q, (1 - tolerance) / 2) for q in _share_interval(better, n, error=_NUISANCE_ERROR))
    # 2. What is at least as extreme. With an outcome, every one with fewer worse or more better answers is in it, whether or
    #    not the statistic says so: then it is likeliest exactly where the claim only just holds.
    most_better = min(n, math.ceil(n * high + 8 * math.sqrt(n * high) + 30))  # above: less than _TAIL (Bernstein)
    b = np.arange(most_better + math.ceil(n * tolerance) + 1)[:, None]
    c = np.arange(most_better + 1)[None, :]
    extreme = _score(b, c, n, tolerance) <= _score(np.array(worse), np.array(better), n, tolerance) + 1e-9
    extreme = np.maximum.accumulate(np.maximum.accumulate(extreme[::-1], axis=0)[::-1], axis=1)
    counts = np.stack(np.nonzero(extreme & (b + c <= n)))
    # 3. Its probability where the claim only just holds (with the same q and more worse answers it is smaller still)
    largest = _largest_probability(np.vstack([counts, n - counts.sum(axis=0)]), tolerance, low=low, high=high)
    return min(1.0, largest + _TAIL + _NUISANCE_ERROR)


def _score(worse: NDArray[Any], better: NDArray[Any], n: int, tolerance: float) -> NDArray[np.float64]:
    """Return Tango's statistic: by how many standard errors the difference exceeds the tolerance, with the standard error at
    the boundary of the hypothesis. Negative values are evidence against the hypothesis."""
    linear = worse + better - tolerance * (2 * n - worse + better)
    q = (linear + np.sqrt(linear**2 + 8 * n * better * tolerance * (1 - tolerance))) / (4 * n)  # the likeliest there
    variance = n * (2 * np.maximum(q, 0) + tolerance - tolerance**2)
    return np.asarray((worse - better - n * tolerance) / np.sqrt(variance))


def _largest_probability(counts: NDArray[np.int64], tolerance: float, *, low: float, high: float) -> float:
    """Return an upper bound of the probability of outcomes [3, N] (worse, better, same) over q = P(better) in low..high,
    where P(worse) = q + tolerance.

    An event's probabilities P and P' under two distributions obey |asin sqrt P - asin sqrt P'| <= acos of the distributions'
    Bhattacharyya coefficient, which is the n-th power of one example's. Intervals in which the event could be more likely
    than at the best point so far, by more than a step, are halved. So the grid only ever rounds the bound up.
    """
    n, probability = int(counts[:, 0].sum()), _probability_of(counts)

    def shares(q: float) -> list[float]:
        return [q + tolerance, q, max(0.0, 1 - 2 * q - tolerance)]

    def angle(q: float) -> float:
        return math.asin(math.sqrt(min(1.0, probability(shares(q)))))

    def between(q: float, other: float) -> float:
        overlap = sum(math.sqrt(one * two) for one, two in zip(shares(q), shares(other), strict=True))
        return math.acos(min(1.0, overlap) ** n)

    points = [(float(q), angle(float(q))) for q in np.linspace(math.sqrt(low), math.sqrt(high), 33) ** 2]
    best = bound = max(each for _, each in points)
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


def _share_interval(successes: int, trials: int, *, error: float) -> tuple[float, float]:
    """Return the Clopper-Pearson interval of a share, which misses the share with a probability of at most `error`."""

    def bound(most: int) -> float:
        """Return the share at which more than `most` successes have a probability of 1 - error / 2."""
        at_most = _probability_of(np.stack([np.arange(most + 1), trials - np.arange(most + 1)]))
        low, high = 0.0, 1.0
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if at_most([middle, 1 - middle]) > error / 2 else (low, middle)
        return high

    return 1 - bound(trials - successes) if successes else 0.0, bound(successes) if successes < trials else 1.0


def _probability_of(counts: NDArray[np.int64]) -> Callable[[Sequence[float]], float]:
    """Return a function from the probabilities of the kinds to the probability that n draws give one of the outcomes
    `counts` [kinds, N]."""
    n = int(counts[:, 0].sum())
    factorials = np.append(0.0, np.log(np.arange(1, n + 1)).cumsum())
    coefficients = factorials[n] - factorials[counts].sum(axis=0)  # [N], logarithms of the multinomial coefficients

    def probability(shares: Sequence[float]) -> float:
        logs = coefficients
        for drawn, share in zip(counts, shares, strict=True):
            logs = logs + np.where(drawn > 0, drawn * math.log(max(share, 1e-300)), 0.0)
        return float(np.exp(logs).sum())

    return probability
