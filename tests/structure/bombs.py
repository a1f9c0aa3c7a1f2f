"""Small forms that cost llguidance its stack, gigabytes or minutes, with what is said of them. Each stands for a way around
checks of size."""

import json
from typing import Any


def _chain(count: int, rule: str, last: str) -> str:
    """Rules that refer to one another, each to the next."""
    return "\n".join(rule.format(number, number + 1) for number in range(count)) + f"\n{last.format(count)}"


def _references(count: int, of: str) -> str:
    """A JSON schema whose definitions refer to one another, each to the next."""
    each = {
        "$ref": {"$ref": "{}"},
        "items": {"type": "array", "items": {"$ref": "{}"}},
        "allOf": {"allOf": [{"$ref": "{}"}]},
    }[of]
    names = [f"#/$defs/d{number}" for number in range(count + 1)]
    chained = {f"d{number}": json.loads(json.dumps(each).replace("{}", names[number + 1])) for number in range(count)}
    return json.dumps({"$ref": names[0], "$defs": {**chained, f"d{count}": {"type": "string"}}})


DEEP, LARGE, LONG = (
    "refer to one another too deeply",
    "takes more than 32 MiB",
    "is too complex: its grammar takes more than",
)
_LETTERS = [{"type": "string", "pattern": f"[a-z]*{letter}[a-z]*"} for letter in "abcdefghijklmnopqrst"]

BOMBS: dict[str, tuple[tuple[str, Any], str]] = {
    "chained rules": (("grammar", "start: r0\n" + _chain(3000, "r{}: r{}", 'r{}: "a"')), DEEP),
    "chained terminals": (("grammar", "start: T0\n" + _chain(6000, 'T{}: "a" T{}', 'T{}: "a"')), DEEP),
    "references in a schema": (("json", _references(2400, "$ref")), DEEP),
    "references of items": (("json", _references(1500, "items")), DEEP),
    "references in %json": (("grammar", f"start: %json {_references(2800, '$ref')}"), DEEP),
    "references of allOf in %json": (("grammar", f"start: %json {_references(2000, 'allOf')}"), DEEP),
    "grammars in grammars": (("grammar", "start: " + "%lark { start: " * 6000 + '"a"' + " }" * 6000), LARGE),
    "repetitions of repetitions": (("regex", "((a{99}){99}){99}"), LARGE),
    "repetitions of terminals": (("grammar", 'start: T\nT: U{99}\nU: V{99}\nV: "a"{99}'), LARGE),
    "many choices of nothing": (("regex", "a?" * 20_000), LONG),
    "patterns that hold together": (("json", {"allOf": _LETTERS}), LONG),
    "multiples that hold together": (
        ("json", {"allOf": [{"type": "integer", "multipleOf": prime} for prime in (9973, 9967, 9949, 9941)]}),
        LONG,
    ),
    "a part, of a schema that is wrong elsewhere": (
        ("json", {"type": "object", "properties": {"a": {"type": "objekt"}, "b": {"allOf": _LETTERS}}}),
        LONG,
    ),
}
