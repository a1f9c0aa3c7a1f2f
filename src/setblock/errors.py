"""Define the exception for a user's mistake, and the base class of the library's warnings."""

import difflib
import json
import re
import shlex
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit
from urllib.request import url2pathname


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


@contextmanager
def prefixed(prefix: str, kinds: type[Exception] | tuple[type[Exception], ...] = SetBlockError) -> Iterator[None]:
    """Put what it is about, such as a model or the line of a file, before the message of a `SetBlockError` that is raised while
    active. Errors of other `kinds`, another library's, become one in the same way."""
    try:
        yield
    except kinds as error:
        said = str(error) if isinstance(error, SetBlockError) else one_line(error)
        raise SetBlockError(f"{prefix}: {said}") from error


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known word that is nearest to an unknown one, as part of a message. It is empty if none is near; how near
    one must be, in 0..1, is the `cutoff`, as in `difflib`."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f", did you mean {close[0]!r}?" if close else ""


def one_line(error: BaseException) -> str:
    """Return the message of another library's error, in one line."""
    return " ".join(str(error).split())


def shown(value: object) -> str:
    """Return a value for a message, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


_VALID = {
    "greater_than_equal": "be at least {ge}",
    "greater_than": "be above {gt}",
    "less_than_equal": "be at most {le}",
    "less_than": "be below {lt}",
    "literal_error": "be one of {expected}",
    "string_type": "be a text",
    "string_pattern_mismatch": "match {pattern}",
    "string_too_long": "be at most {max_length} characters long",
    "string_too_short": "be at least {min_length} characters long",
    **dict.fromkeys(("list_type", "tuple_type"), "be a list"),
    **dict.fromkeys(("dict_type", "dataclass_type", "model_type", "model_attributes_type"), "be an object"),
    **dict.fromkeys(("int_type", "int_parsing", "int_from_float"), "be a whole number"),
    **dict.fromkeys(("float_type", "float_parsing"), "be a number"),
    **dict.fromkeys(("bool_type", "bool_parsing"), "be true or false"),
    "too_long": "have at most {max_length} items, not {actual_length}",
    "too_short": "have at least {min_length} items, not {actual_length}",
    "unexpected_keyword_argument": "be left out: there is no such key",
    "missing": "be given",
}
_WITHOUT_VALUE = ("too_long", "too_short", "unexpected_keyword_argument", "missing")


def fault_of(name: str, problem: Mapping[str, Any]) -> str:
    """Return what pydantic found wrong with a value, one of its `errors()`, in plain words; `name` is the value's."""
    kind = problem["type"]
    context = {key: f"{each:g}" if isinstance(each, float) else each for key, each in problem.get("ctx", {}).items()}
    if kind in ("too_long", "too_short"):
        context["actual_length"] = len(problem["input"])  # pydantic does not count keys
    if kind == "too_short" and context["min_length"] == 1:
        return f"{name} must not be empty"
    if kind == "literal_error" and " or " not in context["expected"]:
        return f"{name} must be {context['expected']}, not {shown(problem['input'])}"
    said = problem["msg"].removeprefix("Value error, ")
    told = _VALID.get(kind, "").format(**context) or re.sub(r"^(\w+ should|must) ", "", said)
    if told == said:
        return f"{name}: {said}"
    return f"{name} must {told}" + ("" if kind in _WITHOUT_VALUE else f", not {shown(problem['input'])}")


def converted(name: str, value: object, kind: Any) -> Any:
    """Return a value as one of a type; a number may be text. Raise `ParameterError` if it can't be; `name` is the value's."""
    from pydantic import TypeAdapter, ValidationError  # a tenth of a second, which --help has no use for

    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ParameterError(fault_of(name, error.errors()[0])) from error


def check_one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Raise `ParameterError` if a value is none of those that are known."""
    if value not in (known := list(known)):
        raise ParameterError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def check_at_least(least: float, **values: float | None) -> None:
    """Raise `ParameterError` if one of the values, each under its name, is smaller."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ParameterError(f"{name} must be at least {least}, not {value}")


MOST_CHARACTERS = 10_000_000
"""Of a text that is tokenised: a tokenizer takes seconds for a million, and ends the process over many more."""


def check_length(name: str, text: str) -> None:
    """Raise `SetBlockError` if a text is too long for a tokenizer."""
    if len(text) > MOST_CHARACTERS:
        raise SetBlockError(f"{name} has {len(text)} characters: it must have at most {MOST_CHARACTERS}")


def check_installed(what: str, *packages: str, extra: str = "train") -> None:
    """Raise `SetBlockError` if a package that something needs, one of an extra, is not installed."""
    if missing := [each for each in packages if find_spec(each) is None]:
        raise SetBlockError(f"{what} needs {' and '.join(missing)}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that adds the packages of an extra to this installation: from where pip had the package, a clone,
    an archive or a repository (PEP 610 records that), else from the package index."""
    try:
        recorded = distribution("setblock").read_text("direct_url.json")
    except PackageNotFoundError:  # as with a source tree on Python's path
        recorded = None
    origin = json.loads(recorded or "{}")
    url, name = urlsplit(origin.get("url", "")), f"setblock[{extra}]"
    if url.scheme == "file":
        name = f"{url2pathname(url.path)}[{extra}]"
    elif url.scheme:
        name += f" @ {origin['vcs_info']['vcs']}+{url.geturl()}" if "vcs_info" in origin else f" @ {url.geturl()}"
    flag = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {flag}{shlex.quote(name)}"
