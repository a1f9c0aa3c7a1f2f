"""Define the exception for a user's mistake, and the base class of the library's warnings."""

import difflib
import sys
import warnings
from collections.abc import Iterable
from importlib.util import find_spec


class SetBlockError(ValueError):
    """Report a user's mistake. Its message is one line that names the value and the valid range. The command line
    prints it without a traceback."""


class ParameterError(SetBlockError):
    """Report a parameter that is out of its range. The command line exits with code 2, as for any wrong usage."""


class SetBlockWarning(UserWarning):
    """Warn about something that is allowed. Its message is one line."""


def warn(message: str, category: type[SetBlockWarning] = SetBlockWarning) -> None:
    """Warn in the name of the line that called this package."""
    frame, level = sys._getframe(), 1
    while frame.f_globals["__name__"].partition(".")[0] in ("setblock", "torch") and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known word that is nearest to an unknown one, as part of a message. It is empty if none is near.

    Args:
        cutoff: how alike they must be, in 0..1, as in `difflib`.
    """
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f", did you mean {close[0]!r}?" if close else ""


def one_line(error: BaseException) -> str:
    """Return the message of another library's error, in one line."""
    return " ".join(str(error).split())


def check_one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Raise `ParameterError` if a value is none of those that are known."""
    if value not in (known := list(known)):
        raise ParameterError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def check_at_least(least: float, **values: float | None) -> None:
    """Raise `ParameterError` if one of the values, each under its name, is smaller."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ParameterError(f"{name} must be at least {least}, not {value}")


def check_installed(what: str, *packages: str, extra: str = "train") -> None:
    """Raise `SetBlockError` if a package that something needs, one of an extra, is not installed."""
    if missing := [each for each in packages if find_spec(each) is None]:
        raise SetBlockError(f"{what} needs {' and '.join(missing)}: pip install 'setblock[{extra}]'")
