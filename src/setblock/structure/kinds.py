"""The forms that an answer can be constrained to, and checks of their size before they are compiled.

llguidance itself refuses keywords of a schema that it does not support, and references to nothing.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

from setblock.errors import ParameterError, shown

MAX_BYTES = 128 * 1024
MAX_DEPTH = 64
MAX_VALUES = 1000
"""The most values of all `enum` of a schema together, and the most properties."""
MAX_CHOICES = 1000
MAX_COUNT = 10_000
"""The most repetitions in a regular expression."""


@dataclass(frozen=True)
class JsonSchema:
    """A JSON text that is valid under a schema. It is written as `json.dumps` writes it, with a space behind commas and colons
    and no other white space, so that the grammar forces most tokens that are no values.

    Attributes:
        schema: given as a dictionary, a pydantic model (then objects have no other fields) or a text; stored as JSON text.
    """

    schema: Any
    word: ClassVar[str] = "json"

    def __post_init__(self) -> None:
        """Raise `ParameterError` if it is not a schema, or too large."""
        object.__setattr__(self, "schema", _schema_text(self.schema))


@dataclass(frozen=True)
class JsonObject:
    """Any JSON object."""

    word: ClassVar[str] = "json_object"


@dataclass(frozen=True)
class Regex:
    """A text that a regular expression matches as a whole, in the syntax of Rust's `regex`: without look-around."""

    pattern: str
    word: ClassVar[str] = "regex"

    def __post_init__(self) -> None:
        """Raise `ParameterError` if it is no text, or too large."""
        _check_text("regex", self.pattern)


@dataclass(frozen=True)
class Choice:
    """One of several texts."""

    texts: Sequence[str]
    word: ClassVar[str] = "choice"

    def __post_init__(self) -> None:
        """Raise `ParameterError` if these are not texts, or too many."""
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
    """A text of a context-free grammar, from its rule `start` on, in llguidance's variant of Lark's notation."""

    lark: str
    word: ClassVar[str] = "grammar"

    def __post_init__(self) -> None:
        """Raise `ParameterError` if it is no text, or too large."""
        _check_text("grammar", self.lark)


Structure = JsonSchema | JsonObject | Regex | Choice | Grammar
"""A form, checked as far as possible without a tokenizer. Equal forms have equal hashes. `word` is its name in JSON."""

WORDS: dict[str, Callable[..., Structure]] = {kind.word: kind for kind in get_args(Structure)}

WRITTEN = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}


def structure_of(requested: Any) -> Structure:
    """Return the form of a request, which is a `Structure`, a JSON schema (a dictionary, a text or a pydantic model), or a
    dictionary of one key of `WORDS`, such as `{"regex": "[0-9]+"}`. Raise `ParameterError` if it is none of them, or not
    valid."""
    if isinstance(requested, Structure):
        return requested
    if not (isinstance(requested, Mapping) and len(requested) == 1 and next(iter(requested)) in WORDS):
        return JsonSchema(requested)
    ((word, value),) = requested.items()
    if word != JsonObject.word:
        return WORDS[word](value)
    if value is not True:
        raise ParameterError(f"json_object must be true, not {shown(value)}")
    return JsonObject()


def _schema_text(requested: Any) -> str:
    if isinstance(requested, str):
        check_size("schema", requested)
        try:
            requested = json.loads(requested)
        except (ValueError, RecursionError) as error:
            raise ParameterError(f"schema must be JSON, and is not: {error}") from error
    elif isinstance(requested, type) and hasattr(requested, "model_json_schema"):
        requested = requested.model_json_schema()
        close(requested)
    if not isinstance(requested, Mapping | bool):
        raise ParameterError(f"schema must be a JSON object, its text or a pydantic model, not {shown(requested)}")
    try:
        text = json.dumps(requested, ensure_ascii=False)
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


def check_size(name: str, text: str) -> None:
    """Raise `ParameterError` if a text is too long."""
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise ParameterError(f"{name} must be at most {MAX_BYTES} bytes, not {size}")


def check_counts(name: str, pattern: str) -> None:
    """Raise `ParameterError` if a regular expression repeats something too often."""
    for found in re.finditer(r"\{(\d+)(?:,(\d*))?\}", pattern):
        for count in filter(None, found.groups()):
            if len(count) > 9 or int(count) > MAX_COUNT:
                raise ParameterError(f"{name} must repeat at most {MAX_COUNT} times, not {found[0]}")


def check_schema(schema: Any) -> None:
    """Raise `ParameterError`, which names the place, if a schema is too large or too deep."""
    if isinstance(schema, Mapping) and schema and not schema.keys() & _KEYWORDS:
        raise ParameterError(
            f"schema must have keywords of JSON Schema, such as type or properties, and has {', '.join(schema)[:60]}"
        )
    values = properties = 0
    for place, node in _nodes(schema):
        enum, own = node.get("enum"), node.get("properties")
        values += len(enum) if isinstance(enum, list) else 0
        properties += len(own) if isinstance(own, dict) else 0
        for count, what in ((values, "values of enum"), (properties, "properties")):
            if count > MAX_VALUES:
                raise ParameterError(f"schema must have at most {MAX_VALUES} {what}, and has more at {place}")
        if isinstance(node.get("pattern"), str):
            check_counts(f"pattern of schema at {place}", node["pattern"])


def close(schema: Any) -> None:
    """Set `additionalProperties` to false in all objects of a schema that do not have that key. It is for schemas made from a
    class or from the arguments of a function. A schema with `allOf`, which combines objects, stays as it is."""
    nodes = [node for _, node in _nodes(schema)]
    if any("allOf" in node for node in nodes):
        return
    for node in nodes:
        if "properties" in node and isinstance(node, dict):
            node.setdefault("additionalProperties", False)


def parts(schema: Any, place: str = "$") -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside a schema, each after its place, such as `$.properties.name`."""
    if not isinstance(schema, Mapping):
        return
    for key, value in schema.items():
        if key in _OF_NAMES and isinstance(value, Mapping):
            yield from ((f"{place}.{key}.{name}", each) for name, each in value.items())
        elif key in _LISTS and isinstance(value, list):
            yield from ((f"{place}.{key}[{index}]", each) for index, each in enumerate(value))
        elif key in _SINGLE:
            yield f"{place}.{key}", value


_OF_NAMES = ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas")
_LISTS = ("anyOf", "oneOf", "allOf", "prefixItems")
_SINGLE = ("items", "additionalItems", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames")
_OTHERS = ("type", "enum", "const", "required", "pattern", "format", "minLength", "maxLength", "minItems", "maxItems")
_NUMBERS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf")
_PLAIN = ("$ref", "$schema", "$id", "title", "description", "default", "examples", "x-guidance")
_KEYWORDS = {*_OF_NAMES, *_LISTS, *_SINGLE, *_OTHERS, *_NUMBERS, *_PLAIN}


def _nodes(schema: Any) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield a schema and all schemas in it, each after its place. Raise `ParameterError` if it is too deep."""
    waiting = [("$", schema, 0)]
    while waiting:
        place, node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ParameterError(f"schema must be at most {MAX_DEPTH} deep, and is deeper at {place[:60]}...")
        if isinstance(node, Mapping):
            yield place, node
            waiting += [(where, each, depth + 1) for where, each in parts(node, place)]
