"""Write and compare records: JSON objects, how one is written as an answer, and how much of one an answer has.

Knows JSON values. Knows nothing of messages.
"""

import json
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]
Path = tuple[str | int, ...]


def written(record: Record) -> str:
    """Return a record as it is to be answered: JSON on one line."""
    return json.dumps(record, ensure_ascii=False)


def record_in(answer: str) -> Record | None:
    """Return the JSON object that an answer is; None where it is anything else.

    White space around it and within it makes no difference. All else does: a code fence, a comment or a second value is no
    JSON, a key that comes twice has no one value, and NaN is no number.
    """
    try:
        found = json.loads(answer, object_pairs_hook=_object, parse_constant=_no_number)
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def right_fields(wanted: Record, found: Record | None) -> float:
    """Return the share of fields that are equal, of all that either record has; those within lists and objects count
    separately.

    Numbers are equal where their values are (`12` and `12.0`), texts where each character is.
    """
    ours, theirs = dict(_leaves(wanted)), dict(_leaves(found or {}))
    paths = ours.keys() | theirs.keys()
    right = sum(path in ours and path in theirs and _same(ours[path], theirs[path]) for path in paths)
    return right / len(paths) if paths else 1.0


def is_right(wanted: Record, found: Record | None) -> bool:
    """Return whether the whole record is equal; the order of its keys makes no difference."""
    return found is not None and right_fields(wanted, found) == 1.0


def _leaves(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    if not parts or not value:
        yield path, value
        return
    for key, part in parts:
        yield from _leaves(part, (*path, key))


def _same(ours: Any, theirs: Any) -> bool:
    if isinstance(ours, bool) or isinstance(theirs, bool):
        return ours is theirs
    same_kind = type(ours) is type(theirs) or (_number(ours) and _number(theirs))
    return bool(same_kind and ours == theirs)


def _number(value: Any) -> bool:
    return isinstance(value, int | float)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("a key comes twice")
    return found


def _no_number(name: str) -> Any:
    raise ValueError(f"{name} is no number")
