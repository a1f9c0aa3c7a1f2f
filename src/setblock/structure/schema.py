"""Check the size of a JSON schema before an engine sees it.

Knows JSON schemas. Knows nothing of tokenizers. Keywords that the engine does not have, and references that lead nowhere, the
engine refuses.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from setblock.errors import ParameterError

MAX_BYTES = 128 * 1024
MAX_DEPTH = 64
MAX_VALUES = 1000
"""Of all of a schema's `enum`, together; and of all of its properties."""
MAX_CHOICES = 1000
MAX_TARGETS = 200
"""Places of a schema that are referred to."""
MAX_COUNT = 10_000
"""Of repetitions in a regular expression."""


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
    targets: set[str] = set()
    for place, node in _nodes(schema):
        enum, own = node.get("enum"), node.get("properties")
        values += len(enum) if isinstance(enum, list) else 0
        properties += len(own) if isinstance(own, dict) else 0
        for count, what in ((values, "values of enum"), (properties, "properties")):
            if count > MAX_VALUES:
                raise ParameterError(f"schema must have at most {MAX_VALUES} {what}, and has more at {place}")
        if isinstance(node.get("pattern"), str):
            check_counts(f"pattern of schema at {place}", node["pattern"])
        if "$ref" in node:
            targets.add(str(node["$ref"]))
    if len(targets) > MAX_TARGETS:
        raise ParameterError(f"schema must refer to at most {MAX_TARGETS} places, not {len(targets)}")


def close(schema: Any) -> None:
    """Let objects have no properties but those that are named, where nothing else is said: in a schema that was made from a
    class or from the arguments of a function. One that puts objects together by `allOf` stays as it is."""
    nodes = [node for _, node in _nodes(schema)]
    if any("allOf" in node for node in nodes):
        return
    for node in nodes:
        if "properties" in node and isinstance(node, dict):
            node.setdefault("additionalProperties", False)


def parts(schema: Any, place: str = "$") -> Iterator[tuple[str, Any]]:
    """Yield the schemas directly inside a schema, each behind its place, such as `$.properties.name`."""
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
    """Yield all schemas in a schema, itself among them."""
    waiting = [("$", schema, 0)]
    while waiting:
        place, node, depth = waiting.pop()
        if depth > MAX_DEPTH:
            raise ParameterError(f"schema must be at most {MAX_DEPTH} deep, and is deeper at {place[:60]}...")
        if isinstance(node, Mapping):
            yield place, node
            waiting += [(where, each, depth + 1) for where, each in parts(node, place)]
