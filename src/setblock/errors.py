"""The exceptions for a user's mistakes, the base class of the library's warnings, and checks of arguments."""

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
    """A user's mistake. The message is one line that names the value and the valid range. The command line prints it without a
    traceback."""


class ParameterError(SetBlockError):
    """A parameter that is out of its range. The command line exits with code 2, as for any wrong usage."""


class SetBlockWarning(UserWarning):
    """A warning about something questionable but allowed. The message is one line."""


def warn(message: str, category: type[SetBlockWarning] = SetBlockWarning) -> None:
    """Warn, with the line that called this package as the source of the warning."""
    frame, level = sys._getframe(), 1
    while frame.f_globals["__name__"].partition(".")[0] in ("setblock", "torch") and frame.f_back is not None:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


@contextmanager
def prefixed(prefix: str, kinds: type[Exception] | tuple[type[Exception], ...] = SetBlockError) -> Iterator[None]:
    """While active, put a prefix (such as a model, or the line of a file) before the message of a `SetBlockError`. Errors of
    other `kinds`, from other libraries, become a `SetBlockError` in the same way."""
    try:
        yield
    except kinds as error:
        said = str(error) if isinstance(error, SetBlockError) else one_line(error)
        raise SetBlockError(f"{prefix}: {said}") from error


def did_you_mean(word: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """Return the known word that is nearest to an unknown one, as part of a message; empty if none is near. `cutoff`, in 0..1,
    is the least similarity, as in `difflib`."""
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=cutoff)
    return f", did you mean {close[0]!r}?" if close else ""


def one_line(error: BaseException) -> str:
    """Return the message of another library's error, in one line."""
    return " ".join(str(error).split())


def shown(value: object) -> str:
    """Return a value as text for a message, shortened if it is long."""
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
    """Return pydantic's finding about a value, one of its `errors()`, in plain words; `name` is the value's name."""
    kind = problem["type"]
    context = {key: f"{each:g}" if isinstance(each, float) else each for key, each in problem.get("ctx", {}).items()}
    if kind in ("too_long", "too_short"):
        context["actual_length"] = len(problem["input"])  # pydantic does not count keys
    if kind == "too_short" and context["min_length"] == 1:
        return f"{name} must not be empty"
    if kind == "literal_error" and " or " not in context["expected"]:
        return f"{name} must be {context['expected']}, not {shown(problem['input'])}"
    said = problem["msg"].removeprefix("Value error, ")
    requirement = _VALID.get(kind, "").format(**context) or re.sub(r"^(\w+ should|must) ", "", said)
    if requirement == said:
        return f"{name}: {said}"
    return f"{name} must {requirement}" + ("" if kind in _WITHOUT_VALUE else f", not {shown(problem['input'])}")


def converted(name: str, value: object, kind: Any) -> Any:
    """Return a value converted to a type; a number may be text. Raise `ParameterError`, with its `name`, if that fails."""
    from pydantic import TypeAdapter, ValidationError  # takes a tenth of a second, which `--help` need not spend

    try:
        return TypeAdapter(kind).validate_python(value)
    except ValidationError as error:
        raise ParameterError(fault_of(name, error.errors()[0])) from error


def check_one_of(name: str, value: object, known: Iterable[str]) -> None:
    """Raise `ParameterError` if a value is not one of `known`."""
    if value not in (known := list(known)):
        raise ParameterError(f"{name} must be one of {', '.join(known)}, not {value!r}")


def check_at_least(least: float, **values: float | None) -> None:
    """Raise `ParameterError` if one of the values, given by name, is less than `least`."""
    for name, value in values.items():
        if value is not None and value < least:
            raise ParameterError(f"{name} must be at least {least}, not {value}")


MOST_CHARACTERS = 10_000_000
"""The most characters of a text to tokenise: a tokenizer takes seconds for a million, and ends the process over many more."""


def check_length(name: str, text: str) -> None:
    """Raise `SetBlockError` if a text is too long for a tokenizer."""
    if len(text) > MOST_CHARACTERS:
        raise SetBlockError(f"{name} has {len(text)} characters: it must have at most {MOST_CHARACTERS}")


def check_installed(what: str, *packages: str, extra: str = "train") -> None:
    """Raise `SetBlockError` if one of the `packages` of an extra, which `what` needs, is not installed."""
    if missing := [each for each in packages if find_spec(each) is None]:
        raise SetBlockError(f"{what} needs {' and '.join(missing)}: {install_command(extra)}")


def install_command(extra: str) -> str:
    """Return the command that adds an extra's packages to this installation. The source is that of the installation (a clone,
    an archive or a repository, as PEP 610 records it), else the package index."""
    try:
        recorded = distribution("setblock").read_text("direct_url.json")
    except PackageNotFoundError:  # for example, a source tree on Python's path
        recorded = None
    origin = json.loads(recorded or "{}")
    url, name = urlsplit(origin.get("url", "")), f"setblock[{extra}]"
    if url.scheme == "file":
        name = f"{url2pathname(url.path)}[{extra}]"
    elif url.scheme:
        name += f" @ {origin['vcs_info']['vcs']}+{url.geturl()}" if "vcs_info" in origin else f" @ {url.geturl()}"
    flag = "-e " if origin.get("dir_info", {}).get("editable") else ""
    return f"pip install {flag}{shlex.quote(name)}"
