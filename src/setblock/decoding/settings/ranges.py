"""Define the valid range of a number, and the words for it."""

import math
from dataclasses import dataclass
from numbers import Real

from setblock.errors import ParameterError


@dataclass(frozen=True)
class Range:
    """Hold the numbers between `low` and `high`. Not a number is in no range.

    Attributes:
        low: the least number.
        high: the greatest, included.
        above: whether `low` itself is left out.
        far: whether `high` is so large that only an error for a greater number names it.
        words: what an error says of the range, after `must be`. By default its bounds; empty where it has none.
    """

    low: float = -math.inf
    high: float = math.inf
    above: bool = False
    far: bool = False
    words: str = ""

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.words or self.low == -math.inf:
            return self.words
        if self.far:
            return f"at least {self.low:g}"
        if self.above:
            return f"above {self.low:g}" + ("" if self.high == math.inf else f" and at most {self.high:g}")
        return f"at least {self.low:g}" if self.high == math.inf else f"between {self.low:g} and {self.high:g}"

    def check(self, name: str, value: float) -> None:
        """Refuse a value outside.

        Raises:
            ParameterError: says what `name` must be.
        """
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ParameterError(f"{name} must be a number, not {value!r}")
        if self.far and value > self.high:
            raise ParameterError(f"{name} must be at most {self.high}, not {value!r}")
        if value not in self:
            raise ParameterError(f"{name} must be {self}, not {value!r}")


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a `value` that is not between `low` and `high`, both included.

    Raises:
        ParameterError: says so.
    """
    Range(low, high).check(name, value)
