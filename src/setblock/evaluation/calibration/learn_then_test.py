"""Find the fastest setting of a sweep that keeps a tolerance, with a statistical guarantee.

Learn then Test (Angelopoulos et al. 2021) with fixed-sequence testing: the claim that a setting loses more than is tolerated
is tested setting by setting in an order fixed beforehand, each at the full error rate, up to the first that is not rejected.
The order comes from separate examples (Pareto testing, Laufer-Goldshtein et al. 2022).
Knows outcomes. Knows nothing of models or files.
"""

import math
import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from setblock.errors import ParameterError
from setblock.evaluation.calibration.tolerance import Tolerance
from setblock.evaluation.result import Result
from setblock.model.protocol.calibrations import CalibratedSetting

ORDERING_SHARE = 0.25
_FASTER = 1.05  # a setting worth a test is at least this much faster than the last one before it


@dataclass(frozen=True)
class Tested:
    """Hold one test of the sequence.

    Attributes:
        loss: the mean loss on the examples of the test.
        p_value: of the claim that the setting loses more than is tolerated.
        passed: whether that was rejected, and all before it.
        nfe_speedup: on the examples of the test.
    """

    result: Result
    loss: float
    p_value: float
    passed: bool
    nfe_speedup: float


@dataclass(frozen=True)
class Calibration:
    """Hold what a calibration found.

    Attributes:
        tests: in their order; the last one failed, unless all passed.
        exact: the fastest result of method `exact`, which keeps any tolerance by what it is; None where the sweep has none.
        exact_speedup: its NFE speed-up on the examples of the tests.
        chosen: the fastest of what passed and of `exact`; None where there is neither.
        num_ordering, num_testing: how many examples the order was found on, and how many were tested on.
    """

    tolerance: Tolerance
    tests: Sequence[Tested]
    exact: Result | None
    exact_speedup: float | None
    chosen: Result | None
    num_ordering: int
    num_testing: int

    @property
    def by_construction(self) -> bool:
        """Return whether what was chosen is exact mode, which needs no test."""
        return self.chosen is not None and self.chosen is self.exact

    @property
    def nfe_speedup(self) -> float | None:
        """Return the NFE speed-up of the chosen setting, on the examples of the tests."""
        if self.by_construction:
            return self.exact_speedup
        return next((test.nfe_speedup for test in self.tests if test.result is self.chosen), None)

    def records(self, *, domain: str, fingerprint: str) -> list[CalibratedSetting]:
        """Return what a checkpoint records: the fastest setting that passed, if one did, and exact mode, if it was
        swept."""
        passed = sorted((test for test in self.tests if test.passed), key=lambda test: test.nfe_speedup)
        found = [(test.result, test.nfe_speedup, True) for test in passed[-1:]]
        if self.exact is not None and self.exact_speedup is not None:
            found.append((self.exact, self.exact_speedup, False))
        return [
            CalibratedSetting(
                domain=domain,
                point=result.point.to_json(),
                tolerance=self.tolerance.text,
                tested=tested,
                nfe_speedup=speedup,
                num_examples=self.num_testing,
                fingerprint=fingerprint,
            )
            for result, speedup, tested in found
        ]

    def to_json(self) -> dict[str, Any]:
        """Return what was chosen, and each test."""
        return {
            "tolerance": asdict(self.tolerance),
            "chosen": self.chosen and self.chosen.point.to_json(),
            "tested": self.chosen is not None and not self.by_construction,
            "nfe_speedup": self.nfe_speedup,
            "exact_nfe_speedup": self.exact_speedup,
            "num_ordering": self.num_ordering,
            "num_testing": self.num_testing,
            "tests": [
                {
                    "point": test.result.point.to_json(),
                    "loss": test.loss,
                    "p_value": test.p_value,
                    "passed": test.passed,
                    "nfe_speedup": test.nfe_speedup,
                }
                for test in self.tests
            ],
        }


def calibrate(
    results: Sequence[Result],
    tolerance: Tolerance,
    *,
    seed: int = 0,
    examples: Sequence[int] | None = None,
    ordering_share: float = ORDERING_SHARE,
) -> Calibration:
    """Find the fastest setting of a sweep that keeps a tolerance.

    If examples to come are drawn like those of the sweep, the setting chosen loses more than is tolerated with a probability
    of at most 1 - confidence over the draw of the sweep's examples; whatever the settings and however many. The choice among
    those that passed is free, so the fastest is taken.

    Args:
        results: of a sweep, plain decoding's first.
        seed: which examples are for the order and which for the tests.
        examples: the numbers of those to use; all by default.
        ordering_share: of the examples, for the order.

    Raises:
        ParameterError: there are too few examples for any setting to pass, whatever it does; or the tolerance is of accuracy,
            and nobody can say what is right.
    """
    # 1. Two sets of examples
    shuffled = list(range(results[0].num_examples) if examples is None else examples)
    random.Random(seed).shuffle(shuffled)
    num_ordering = round(ordering_share * len(shuffled))
    ordering, testing = shuffled[:num_ordering], shuffled[num_ordering:]
    check_enough(len(shuffled), tolerance, ordering_share=ordering_share)
    if tolerance.measure == "accuracy" and results[0].accuracy is None:
        raise ParameterError("these examples have no right answers: give a tolerance of tokens")

    # 2. The tests, in the order that the one set says, on the other
    tests: list[Tested] = []
    candidates = [result for result in results if result.point.method == "sbd"]
    for result in order_of_tests(candidates, ordering):
        losses = tolerance.losses(result)
        seen = [losses[index] for index in testing]
        p_value = tolerance.p_value(seen)
        passed = p_value <= 1 - tolerance.confidence
        tests.append(Tested(result, sum(seen) / len(seen), p_value, passed, _speedup(result, testing)))
        if not passed:
            break

    # 3. The fastest; exact mode has nothing to be tested for
    exact = max(
        (result for result in results if result.point.method == "exact"),
        key=lambda result: _speedup(result, testing),
        default=None,
    )
    exact_speedup = None if exact is None else _speedup(exact, testing)
    fastest = max((test for test in tests if test.passed), key=lambda test: test.nfe_speedup, default=None)
    chosen = exact if fastest is None else fastest.result
    if fastest is not None and exact_speedup is not None and exact_speedup >= fastest.nfe_speedup:
        chosen = exact
    return Calibration(tolerance, tests, exact, exact_speedup, chosen, len(ordering), len(testing))


def check_enough(examples: int, tolerance: Tolerance, *, ordering_share: float = ORDERING_SHARE) -> None:
    """Refuse a number of examples on which nothing could pass.

    Raises:
        ParameterError: it is such a number.
    """
    testing = examples - round(ordering_share * examples)
    if tolerance.p_value([0.0] * max(1, testing)) > 1 - tolerance.confidence:
        least = math.ceil((tolerance.least_examples() + 1) / (1 - ordering_share))
        raise ParameterError(f"{examples} examples are too few to show {tolerance.text}: use at least {least}")


def order_of_tests(results: Sequence[Result], examples: Sequence[int]) -> list[Result]:
    """Return the results that a test may choose, from careful to careless, judged by some examples only.

    How careless a setting is: the accuracy it lost, and the share of its tokens that are not plain decoding's, which separates
    settings apart where none has lost an answer. One is left out where one before it is as fast, or nearly.
    """
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
