"""What a sampler's hyperparameter may be."""

import math

from setblock.errors import ParameterError


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Refuse a `value` that is not between `low` and `high`, both included; not a number is never.

    Raises:
        ParameterError: says so.
    """
    if not low <= value <= high:
        valid = f"at least {low}" if high == math.inf else f"between {low} and {high}"
        raise ParameterError(f"{name} must be {valid}, not {value}")
