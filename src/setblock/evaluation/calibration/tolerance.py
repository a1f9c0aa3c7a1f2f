"""Define tolerances: what a calibrated setting may lose, how surely, and whether what was seen shows that it loses
less."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from setblock.errors import ParameterError
from setblock.evaluation.calibration.pvalues import mean_p_value, paired_p_value
from setblock.evaluation.result import Result

Measure = Literal["accuracy", "tokens"]
MEASURES: tuple[Measure, ...] = ("accuracy", "tokens")


@dataclass(frozen=True)
class Tolerance:
    """Describe what may be lost, of new examples like those that were seen.

    Attributes:
        measure: `accuracy`: the share of right answers that plain decoding has more. `tokens`: the share of an answer's tokens
            that are not plain decoding's, on average over answers.
        most: in 0..1, both excluded.
        confidence: the probability, over the examples that were seen, that a setting which loses more is not chosen.
    """

    measure: Measure = "accuracy"
    most: float = 0.005
    confidence: float = 0.95

    def __post_init__(self) -> None:
        if self.measure not in MEASURES:
            raise ParameterError(f"a tolerance must be of {' or '.join(MEASURES)}, not {self.measure!r}")
        if not 0 < self.most < 1:
            raise ParameterError(
                f"the tolerance of {self.measure} must be above 0% and below 100%, not {self.most:.4%}"
            )
        if not 0.5 <= self.confidence < 1:
            raise ParameterError(f"confidence must be at least 0.5 and below 1, not {self.confidence:g}")

    @property
    def text(self) -> str:
        """Return the tolerance in a few words."""
        what = "points of accuracy lost" if self.measure == "accuracy" else "% of tokens not plain decoding's"
        return f"at most {100 * self.most:g} {what}, {100 * self.confidence:g}% confidence"

    def losses(self, result: Result) -> list[float]:
        """Return the loss of each example. The tolerance applies to their mean."""
        return [*map(float, result.lost)] if self.measure == "accuracy" else result.differing

    def p_value(self, losses: Sequence[float]) -> float:
        """Return the p-value of the claim that settings with these losses lose more than the tolerance."""
        if self.measure == "tokens":
            return mean_p_value(losses, tolerance=self.most)
        worse, better = sum(loss > 0 for loss in losses), sum(loss < 0 for loss in losses)
        return paired_p_value(worse, better, len(losses), tolerance=self.most)

    def least_examples(self) -> int:
        """Return how many examples it takes for a setting that loses nothing on any of them to pass."""

        def passes(count: int) -> bool:
            return self.p_value([0.0] * count) <= 1 - self.confidence

        enough = 1
        while not passes(enough):
            enough *= 2
        return enough // 2 + 1 + bisect_left(range(enough // 2 + 1, enough), True, key=passes)


def tolerance_of(text: str, *, confidence: float) -> Tolerance:
    """Return the tolerance that `MEASURE=PERCENT` says.

    Raises:
        ParameterError: it is malformed or out of range.
    """
    measure, _, percent = text.partition("=")
    for known in MEASURES:
        if measure == known:
            try:
                return Tolerance(measure=known, most=float(percent) / 100, confidence=confidence)
            except ParameterError:
                raise
            except ValueError as error:
                raise ParameterError(
                    f"--tolerance {measure} must be a percentage, such as {measure}=0.5, not {text!r}"
                ) from error
    raise ParameterError(f"--tolerance must be accuracy=PERCENT or tokens=PERCENT, not {text!r}")
