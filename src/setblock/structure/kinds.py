"""Define the forms that an answer may be held to, as values.

Knows notations. Knows nothing of tokenizers.
"""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from setblock.errors import ParameterError, shown
from setblock.structure.schema import MAX_CHOICES, check_counts, check_schema, check_size, close


@dataclass(frozen=True)
class JsonSchema:
    """Require a JSON text that is valid under a schema. It is written as `json.dumps` writes: a space behind commas and
    colons, and no other, so that the grammar forces most of what is no value.

    Attributes:
        schema: given as a dictionary, a pydantic model (whose objects have no other fields) or a text; kept as JSON text.
    """

    schema: Any
    word: ClassVar[str] = "json"

    def __post_init__(self) -> None:
        """Raise `ParameterError` if it is no schema, or too large."""
        object.__setattr__(self, "schema", _schema_text(self.schema))


@dataclass(frozen=True)
class JsonObject:
    """Require any JSON object."""

    word: ClassVar[str] = "json_object"


@dataclass(frozen=True)
class Regex:
    """Require a text that a regular expression matches as a whole, in the syntax of Rust's `regex`: without look-around."""

    pattern: str
    word: ClassVar[str] = "regex"

    def __post_init__(self) -> None:
        """Raise `ParameterError` if it is no text, or too large."""
        _check_text("regex", self.pattern)


@dataclass(frozen=True)
class Choice:
    """Require one of several texts."""

    texts: Sequence[str]
    word: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        """Raise `ParameterError` if these are no texts, or too many."""
        if isinstance(self.texts, str) or not isinstance(self.texts, Sequence) or not self.texts:
            raise ParameterError(f"choice must be a list of texts, not {shown(self.texts)}")
        if len(self.texts) > MAX_CHOICES:
            raise ParameterError(f"choice must have at most {MAX_CHOICES} texts, not {len(self.texts)}")
        if not all(isinstance(each, str) and each for each in self.texts):
            raise ParameterError("choice must have texts that are not empty")
        object.__setattr__(self, "texts", tuple(self.texts))
        check_size("choice", "".join(self.texts))


@dataclass(frozen=True)
class Grammar:
    """Require a text of a context-free grammar in llguidance's notation, a kind of Lark's, from its rule `start` on."""

    lark: str
    word: ClassVar[str] = "grammar"

    def __post_init__(self) -> None:
        """Raise `ParameterError` if it is no text, or too large."""
        _check_text("grammar", self.lark)


Structure = JsonSchema | JsonObject | Regex | Choice | Grammar
"""A form, checked as far as that needs no tokenizer. Equal forms have equal hashes. Its `word` is what it is called in JSON."""

WORDS: dict[str, Callable[..., Structure]] = {kind.word: kind for kind in get_args(Structure)}

WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def structure_of(asked: Any) -> Structure:
    """Return the form that a request asks for: a `Structure`; a JSON schema as a dictionary, a text or a pydantic model; or a
    dictionary of one key of `WORDS`, such as `{"regex": "[0-9]+"}`. Raise `ParameterError` if it is none, or not valid."""
    if isinstance(asked, Structure):
        return asked
    if not (isinstance(asked, Mapping) and len(asked) == 1 and next(iter(asked)) in WORDS):
        return JsonSchema(asked)
    ((word, value),) = asked.items()
    if word != JsonObject.word:
        return WORDS[word](value)
    if value is not True:
        raise ParameterError(f"json_object must be true, not {shown(value)}")
    return JsonObject()


def _schema_text(asked: Any) -> str:
    if isinstance(asked, str):
        check_size("schema", asked)
        try:
            asked = json.loads(asked)
        except (ValueError, RecursionError) as error:
            raise ParameterError(f"schema must be JSON, and is not: {error}") from error
    elif isinstance(asked, type) and hasattr(asked, "model_json_schema"):
        asked = asked.model_json_schema()
        close(asked)
    if not isinstance(asked, Mapping | bool):
        raise ParameterError(f"schema must be a JSON object, its text or a pydantic model, not {shown(asked)}")
    try:
        text = json.dumps(asked, ensure_ascii=False)
        text.encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise ParameterError(f"schema must be made of what JSON has: {error}") from error
    check_size("schema", text)
    check_schema(json.loads(text, parse_int=_whole))
    return text


def _whole(digits: str) -> int:
    if abs(number := int(digits[:32])) > 2**53:  # llguidance would round them
        raise ParameterError(f"whole numbers of schema must be within 2**53 of 0, not {number}")
    return number


def _check_text(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise ParameterError(f"{name} must be a text that is not empty, not {shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise ParameterError(f"{name} must be valid Unicode") from error
    check_size(name, value)
    check_counts(name, value)
