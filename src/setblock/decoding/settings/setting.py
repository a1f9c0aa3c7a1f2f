"""A row of the table of settings (`Setting`): the type, valid values and help of a decoding setting.

The table itself is `DecodingSettings`.
"""

import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import partial
from numbers import Real
from typing import Any, Literal, get_args

from setblock.errors import ParameterError, check_one_of


@dataclass(frozen=True)
class Range:
    """The numbers between `low` and `high`. NaN is in no range."""

    low: float = -math.inf
    high: float = math.inf  # included
    above: bool = False  # whether `low` itself is excluded
    far: bool = False  # whether `high` is so large that only the error for a greater number mentions it
    words: str = ""  # the range in an error, after `must be`. By default its bounds; empty if it has none

    def __contains__(self, value: float) -> bool:
        return (self.low < value if self.above else self.low <= value) and value <= self.high

    def __str__(self) -> str:
        if self.words or self.low == -math.inf:
            return self.words
        if self.far or self.high == math.inf:
            return f"{'above' if self.above else 'at least'} {self.low:g}"
        if self.above:
            return f"above {self.low:g} and at most {self.high:g}"
        return f"between {self.low:g} and {self.high:g}"

    def check(self, name: str, value: float) -> None:
        """Raise `ParameterError` if `value` is not in the range. The error says what `name` must be."""
        if not isinstance(value, Real) or isinstance(value, bool):
            raise ParameterError(f"{name} must be a number, not {value!r}")
        if value not in self:
            valid = f"at most {self.high}" if self.far and value > self.high else self
            raise ParameterError(f"{name} must be {valid}, not {value!r}")


def check_range(name: str, value: float, low: float, high: float = math.inf) -> None:
    """Raise `ParameterError` for a `value` that is not between `low` and `high`, both included."""
    Range(low, high).check(name, value)


Group = Literal["point", "answer", "sampling", "report"]
"""What a setting is about: where decoding trades accuracy for passes (the operating point), where an answer ends, how tokens
are drawn, or what is reported."""


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One decoding setting, a row of the table."""

    name: str  # the field of `DecodingSettings`
    type: Any  # in JSON: `int`, `float`, `str`, a Literal, `list[int]`, `list[str]`, `dict[int, float]`
    default: Any  # None if it follows from the model or from other settings
    help: str  # one or two sentences
    range: Range  # the valid numbers
    group: Group
    most: int | None = None  # the maximum length of a list
    metavar: str = "N"  # the value's name in the command line's help
    short: str = ""  # its name in tables of results, if different
    only_in: str | None = None  # in the group `point`, the only method that it acts in; by default all but `ntp`
    is_python: bool = False  # whether only Python code can set it, not the command line or the server

    def acts_in(self, method: str) -> bool:
        """Return whether a setting of the operating point has an effect in a method."""
        return method == self.only_in if self.only_in else method != "ntp"

    def plain(self, value: Any) -> Any:
        """Return a valid value as Python numbers and tuples, not NumPy's or lists, or raise `ParameterError`."""
        if value is None and (self.default is None or self.default in ((), {})):  # the same as not set
            return self.default
        return _PLAIN.get(self.type, _any)(self, value)


def setting(default: Any, help: str, valid: Range | None = None, **more: Any) -> Any:
    """Return a field of `DecodingSettings`. `help`: its help. `more`: further fields of its `Setting`."""
    row = {"help": help, "range": valid or Range(), **more}
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), hash=False, metadata=row)
    return field(default=default, metadata=row)


point, answer, sampling, report = (partial(setting, group=group) for group in get_args(Group))
"""`setting` for the fields of each group."""


def table_of(settings: type[Any]) -> dict[str, Setting]:
    """Return the table of a dataclass whose fields are made by `setting`: a row for each field, by name."""
    rows = {}
    for each in fields(settings):
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        # An object, such as a sampler, is set by a name
        kind = str if isinstance(each.type, str) else _JSON_TYPES.get(each.type, each.type)
        rows[each.name] = Setting(name=each.name, type=kind, default=default, **each.metadata)
    return rows


def whole(name: str, value: Any) -> int:
    """Return a whole number as a Python int, or raise `ParameterError` if it is none."""
    try:
        return operator.index(value)
    except TypeError:
        raise ParameterError(f"{name} must be a whole number, not {value!r}") from None


_JSON_TYPES: dict[Any, Any] = {
    int | None: int,
    float | None: float,
    Sequence[int]: list[int],
    str | Sequence[str]: list[str],
    Mapping[int, float]: dict[int, float],
}
"""The JSON types of annotations, if different."""


def _any(row: Setting, value: Any) -> Any:
    if known := get_args(row.type):
        check_one_of(row.name, value, known)
    return value


def _whole(row: Setting, value: Any) -> int:
    found = whole(row.name, value)
    row.range.check(row.name, found)
    return found


def _real(row: Setting, value: Any, *, name: str | None = None) -> float:
    row.range.check(name or row.name, float(value) if isinstance(value, Real) else value)
    return float(value)


def _token_ids(row: Setting, value: Any) -> tuple[int, ...]:
    if value is None or isinstance(value, str) or not isinstance(value, Iterable):
        raise ParameterError(f"{row.name} must be a list of token ids, not {value!r}")
    return tuple(whole(f"token ids of {row.name}", each) for each in value)


def _texts(row: Setting, value: Any) -> tuple[str, ...]:
    if not isinstance(value, Iterable):
        raise ParameterError(f"{row.name} must be a text or a list of texts, not {value!r}")
    found = (value,) if isinstance(value, str) else tuple(value)
    if row.most is not None and len(found) > row.most:
        raise ParameterError(f"number of {row.name} strings must be at most {row.most}, not {len(found)}")
    for text in found:
        if not isinstance(text, str) or not text:
            raise ParameterError(f"{row.name} must be a text that is not empty, not {text!r}")
    return found


def _biases(row: Setting, value: Any) -> dict[int, float]:
    if not isinstance(value, Mapping):
        raise ParameterError(f"{row.name} must be a mapping of token ids to numbers, not {value!r}")
    return {
        whole(f"token ids of {row.name}", each): _real(row, bias, name=f"{row.name} of token {each}")
        for each, bias in value.items()
    }


_PLAIN: dict[Any, Callable[[Setting, Any], Any]] = {
    int: _whole,
    float: _real,
    list[int]: _token_ids,
    list[str]: _texts,
    dict[int, float]: _biases,
}
