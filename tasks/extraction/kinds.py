"""Read kinds of messages from files: the fields that can be asked for, and wordings of whole messages.

Knows the files' form. Knows nothing of values, or of how a wording becomes a message.

A file begins with a line for each field, `name = type options | key`. One without a key is never asked for. After the
key come its other names, if `keys.txt` does not have them.
Then come the wordings, each after a line `=== split`, which may name the flags `typos` and `lower`, and `-field` for each field
that its messages leave open in a way that two readers would fill in differently.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from setblock.data.tasks.task import SPLITS, Split

COMMON = """other = person
other2 = person
company2 = company
city2 = city
address2 = address
phone2 = phone
email2 = email other
amount2 = amount 5..400
code2 = code #####
before = date -60..-10
later = date 140..200"""
"""What every wording may name to lead readers astray: other people, other dates, other amounts."""


@dataclass(frozen=True)
class Field:
    """Describe one thing that a message may say.

    Attributes:
        name: in wordings.
        type: a type of `values.py`.
        options: how its values are drawn, such as `3..25` of a date.
        key: its name in a record; empty where it is never asked for.
        other_keys: what else a person could ask for it by.
    """

    name: str
    type: str
    options: str
    key: str
    other_keys: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wording:
    """Hold the text of a message, with slots and choices.

    Attributes:
        name: the kind and a number.
        split: the split whose own it is.
        flags: `typos`, `lower`.
        unclear: fields not to ask for.
        text: as `writing.py` reads it.
    """

    name: str
    split: Split
    flags: frozenset[str]
    unclear: frozenset[str]
    text: str


@dataclass(frozen=True)
class Kind:
    """Describe one kind of message."""

    name: str
    fields: dict[str, Field]
    wordings: tuple[Wording, ...]


@lru_cache
def kinds() -> tuple[Kind, ...]:
    """Return the kinds whose wordings each have a split, by name."""
    return _kinds_in("kinds")


@lru_cache
def other_kinds() -> tuple[Kind, ...]:
    """Return the kinds that have one split as a whole, by name."""
    return _kinds_in("other_kinds")


def _kinds_in(name: str) -> tuple[Kind, ...]:
    folder = Path(__file__).with_name(name)
    paths = sorted(folder.iterdir(), key=lambda path: path.name)
    return tuple(_kind(path.name.removesuffix(".txt"), path.read_text(encoding="utf-8")) for path in paths)


def _kind(name: str, text: str) -> Kind:
    head, *parts = re.split(r"^=== ", text, flags=re.MULTILINE)
    fields = {field.name: field for field in map(_field, f"{COMMON}\n{head.strip()}".splitlines())}
    return Kind(name, fields, tuple(_wordings(name, parts)))


def _field(line: str) -> Field:
    name, options = line.split(" = ", 1)
    options, _, keys = options.partition(" | ")
    type_, _, options = options.partition(" ")
    key, *others = keys.split(", ")
    return Field(name, type_, options, key, tuple(others))


def _wordings(kind: str, parts: list[str]) -> Iterator[Wording]:
    for number, part in enumerate(parts, start=1):
        header, _, text = part.partition("\n")
        first, *marks = header.split()
        split = next(each for each in SPLITS if each == first)
        unclear = frozenset(mark.removeprefix("-") for mark in marks if mark.startswith("-"))
        flags = frozenset(mark for mark in marks if not mark.startswith("-"))
        yield Wording(f"{kind}-{number}", split, flags, unclear, text.strip())
