"""Forms of all kinds that the tests hold answers to, and what draws more of them."""

from typing import Any

from hypothesis import strategies as st

SHORT = {"type": "string", "maxLength": 4}


def record(**properties: Any) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": record(name=SHORT, age={"type": "integer", "minimum": 0, "maximum": 120}),
    "nested": record(person=record(name=SHORT, home=record(street=SHORT, number={"type": "integer"}))),
    "optional": {
        "type": "object",
        "properties": {"a": SHORT, "b": {"type": "boolean"}, "c": {"type": "null"}},
        "required": ["b"],
        "additionalProperties": False,
    },
    "array": {"type": "array", "items": {"type": "integer", "minimum": -9, "maximum": 9}, "minItems": 2, "maxItems": 4},
    "array of records": {"type": "array", "items": record(x={"type": "boolean"}), "minItems": 1, "maxItems": 3},
    "enum": record(colour={"enum": ["red", "green", "blue", "dark red"]}),
    "enum of all kinds": {"enum": [1, "one", None, True, [1, 2], {"a": "b"}]},
    "const": record(version={"const": "1.2.3"}, ok={"const": True}),
    "range": record(p={"type": "number", "minimum": 0, "maximum": 1}, n={"type": "integer", "minimum": 17}),
    "exclusive range": {"type": "integer", "exclusiveMinimum": 3, "exclusiveMaximum": 12},
    "pattern": record(id={"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}),
    "pattern of choices": {"type": "string", "pattern": "^(north|south)(east|west)?$"},
    "date": record(day={"type": "string", "format": "date"}),
    "length": {"type": "string", "minLength": 3, "maxLength": 6},
    "anyOf": {"anyOf": [{"type": "null"}, {"type": "boolean"}, record(x=SHORT)]},
    "oneOf": {"oneOf": [record(kind={"const": "a"}, x=SHORT), record(kind={"const": "b"}, y={"type": "integer"})]},
    "unicode": record(ключ={"enum": ["да", "нет", "🙂 может"]}, 名={"const": "東京"}),
    "recursion": {
        "$ref": "#/$defs/tree",
        "$defs": {
            "tree": record(v={"type": "boolean"}, kids={"type": "array", "items": {"$ref": "#/$defs/tree"}, "maxItems": 2})
        },
    },
    "tuple": {"type": "array", "prefixItems": [SHORT, {"type": "boolean"}], "items": False, "minItems": 2},
    "types": record(a={"type": ["string", "null"], "maxLength": 3}, b={"type": ["integer", "boolean"]}),
}  # fmt: skip

_NAMES = st.text("abcdefgé ", min_size=1, max_size=3)
_SMALL = st.integers(0, 5)
_LEAVES = st.one_of(
    st.builds(lambda most: {"type": "string", "maxLength": most}, _SMALL),
    st.builds(
        lambda low, room: {"type": "integer", "minimum": low, "maximum": low + room}, st.integers(-50, 50), _SMALL
    ),
    st.sampled_from([{"type": "boolean"}, {"type": "null"}, {"type": "string", "pattern": "^a{1,3}[0-9]$"}]),
    st.builds(
        lambda values: {"enum": values},
        st.lists(
            st.one_of(st.text(max_size=5), st.integers(-(2**53), 2**53), st.booleans(), st.none()),
            min_size=1,
            max_size=4,
        ),
    ),
)


def _around(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    arrays = st.builds(
        lambda items, least, room: {"type": "array", "items": items, "minItems": least, "maxItems": least + room},
        inner,
        st.integers(0, 1),
        st.integers(0, 2),
    )
    objects = st.builds(
        lambda properties, needed: {
            "type": "object",
            "properties": properties,
            "required": list(properties)[:needed],
            "additionalProperties": False,
        },
        st.dictionaries(_NAMES, inner, max_size=3),
        st.integers(0, 3),
    )
    return arrays | objects | st.builds(lambda some: {"anyOf": some}, st.lists(inner, min_size=1, max_size=2))


def drawn_schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Schemas of all kinds."""
    return st.recursive(_LEAVES, _around, max_leaves=6)
