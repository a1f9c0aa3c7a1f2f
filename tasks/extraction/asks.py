"""Ask for a record in many ways: other words, other names and orders of its keys, the message first or last.

Knows the files `asks.yaml` and `keys.txt`. Knows nothing of how a message was written.
"""

import json
import random
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from pathlib import Path

import yaml

from setblock.data.tasks.task import Split

from .asking import record_of
from .kinds import Field
from .records import Record
from .writing import AMOUNTS, WrittenMessage

_ALL_FIELDS, _OWN_ORDER, _OWN_KEYS, _OTHER_KEY = 0.5, 0.4, 0.35, 0.6  # shares of requests; the last, of keys
_NUMBERS = (*AMOUNTS, "number", "quantity", "decimal", "between_dates")
_TYPES = {
    **dict.fromkeys(_NUMBERS, "number"),
    **dict.fromkeys(("several", "people"), "list of texts"),
    "flag": "true or false",
    "date": "YYYY-MM-DD",
    "time": "HH:MM",
    "goods": "list of {name, quantity, unit_price}",
}


def request_in_any_wording(
    message: WrittenMessage, fields: Sequence[Field], split: Split, rng: random.Random
) -> tuple[str, Record]:
    """Return what a user writes, and the record that answers it. Words, and names of keys, that are under `test` are of
    held-out splits only.

    Args:
        fields: which may be asked for; all or some are.
    """
    if rng.random() >= _ALL_FIELDS:
        kept = rng.sample(range(len(fields)), rng.randint(2, len(fields)))
        fields = [fields[place] for place in sorted(kept)]
    if rng.random() >= _OWN_ORDER:
        fields = rng.sample(fields, len(fields))
    words = _asks()["train" if split == "train" else "test"]
    keys = _keys(fields, split, rng)
    record = dict(zip(keys, record_of(fields, message).values(), strict=True))
    shape = rng.choice(_SHAPES)
    written, rules = shape(keys, fields), _rules(message, dict(zip(keys, fields, strict=True)), words, rng)
    ask = rng.choice(words["asks"])
    if "\n" in written or written.startswith("{"):  # a block has lines of its own
        ask = ask.replace("{keys}. ", "\n{keys}\n").replace("{keys} ", "\n{keys}\n")
    ask = ask.replace("{keys}", written).replace("{rules}", rules)
    ask = "\n".join(line.strip() for line in ask.splitlines() if line.strip())
    return rng.choice(words["frames"]).replace("{ask}", ask).replace("{message}", message.text), record


def _keys(fields: Iterable[Field], split: Split, rng: random.Random) -> list[str]:
    """Return a name for each field, all different, in one way to write them."""
    own, case = rng.random() < _OWN_KEYS, rng.choice(_CASES)
    found: list[str] = []
    for field in fields:
        others = field.other_keys or _names()[field.key][split == "train"]
        names = [field.key] if own or rng.random() >= _OTHER_KEY else [*others]
        rng.shuffle(names)
        names = [case(each) for each in (*names, field.key)]
        # Two fields may have another name in common, and a name that is another's own.
        found.append(next((each for each in names if each not in found), case(f"{field.key}_2")))
    return found


def _rules(message: WrittenMessage, fields: dict[str, Field], words: dict[str, list[str]], rng: random.Random) -> str:
    """Return how values are written, and what is missing."""
    types = {field.type for field in fields.values()}
    rules = [rng.choice(words[f"{each}s"]) for each in ("date", "time", "flag") if each in types]
    rules += [rng.choice(words["goods"]).format(key=key) for key, field in fields.items() if field.type == "goods"]
    if message.style.convention is not None:
        rules.append(f"Dates in the message are {message.style.convention}.")
    rules.append(rng.choice(words["nulls"]))
    rng.shuffle(rules)
    return " ".join(filter(None, rules))


def _type(field: Field) -> str:
    return _TYPES.get(field.type, "text")


_SHAPES: tuple[Callable[[list[str], Sequence[Field]], str], ...] = (
    lambda keys, _: ", ".join(keys),
    lambda keys, _: ", ".join(keys),
    lambda keys, _: f"{', '.join(keys[:-1])} and {keys[-1]}",
    lambda keys, _: ", ".join(f'"{key}"' for key in keys),
    lambda keys, _: "\n".join(f"- {key}" for key in keys),
    lambda keys, fields: "\n".join(f"- {key}: {_type(field)}" for key, field in zip(keys, fields, strict=True)),
    lambda keys, fields: ", ".join(f"{key} ({_type(field)})" for key, field in zip(keys, fields, strict=True)),
    lambda keys, _: json.dumps(dict.fromkeys(keys), ensure_ascii=False),
    lambda keys, fields: json.dumps(dict(zip(keys, map(_type, fields), strict=True)), ensure_ascii=False),
)
_CASES: tuple[Callable[[str], str], ...] = (
    *(str,) * 4,
    lambda key: key.replace("_", " "),
    lambda key: key.replace("_", "-"),
    lambda key: key.replace("_", " ").capitalize(),
    lambda key: key[0] + key.title().replace("_", "")[1:],
)


@lru_cache
def _asks() -> dict[str, dict[str, list[str]]]:
    found: dict[str, dict[str, list[str]]] = yaml.safe_load(_text("asks.yaml"))
    return found


@lru_cache
def _names() -> dict[str, tuple[list[str], list[str]]]:
    """Return the other names of each key: of held-out splits, of training. A line is `key: name, name | name`."""
    names = {}
    for line in _text("keys.txt").splitlines():
        key, _, others = line.partition(": ")
        training, _, held_out = others.partition(" | ")
        names[key] = (held_out.split(", "), training.split(", "))
    return names


def _text(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")
