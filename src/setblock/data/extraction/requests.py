"""Requests: the words in which a record is asked for, read from `requests.yaml`, and the forms in which a schema is told.

Knows phrasings. Knows nothing of what is asked for, or of how the message was written.
"""

import json
import random
from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any

import yaml

from setblock.data.extraction.asking import LISTS, NUMBERS, Asked
from setblock.data.extraction.records import Record, written
from setblock.data.extraction.writing import WrittenMessage


@cache
def _words() -> dict[str, Any]:
    text = files("setblock.data.extraction").joinpath("requests.yaml").read_text(encoding="utf-8")
    words: dict[str, Any] = yaml.safe_load(text)
    return words


def question(message: WrittenMessage, asked: list[Asked], example: Record, rng: random.Random) -> str:
    """What a user writes: the task, the schema, what to do where something is missing, and the message.

    Args:
        example: a record of another message in the same form, which may be shown in place of a schema.
    """
    words = _words()
    form = rng.choice(words["forms"])
    schema, says_forms = _schema(form, asked, example, rng)
    opening = rng.choice(words["openings"])
    rules = [rng.choice(words["nulls"])]
    if not says_forms:
        rules += _forms(asked, rng)
    if message.style.convention is not None:
        rules.append(rng.choice(words["conventions"]).format(message.style.convention))
    if rng.random() < 0.6:
        rules.append(rng.choice(words["only"]))
    rng.shuffle(rules)
    told = " ".join(rules) if rng.random() < 0.7 else "\n".join(f"- {rule}" for rule in rules)
    text = rng.choice(words["frames"]).format(message.text)
    if rng.random() < 0.3:
        return f"{text}\n\n{opening}\n{schema}\n{told}"
    return f"{opening}\n{schema}\n{told}\n\n{text}"


def _forms(asked: list[Asked], rng: random.Random) -> Iterator[str]:
    types = {each.field.type for each in asked}
    groups = {"numbers": NUMBERS, "lists": LISTS}
    for named, wordings in _words()["values"]:
        if any(types & {*groups.get(name, (name,))} for name in named):
            yield rng.choice(wordings)
    for each in asked:
        if each.field.type == "goods":
            yield f"{each.key} is a {each.form}."


def _schema(form: str, asked: list[Asked], example: Record, rng: random.Random) -> tuple[str, bool]:
    """A text that names the keys, and whether it says how values are written."""
    if form == "bullets":
        mark = rng.choice("-*")
        return "\n".join(f"{mark} {each.key}: {each.field.description} ({each.form})" for each in asked), True
    if form == "meanings":
        return "\n".join(f"{each.key} = {each.field.description}" for each in asked), False
    if form == "keys":
        return f"{rng.choice(_words()['keys'])}: {', '.join(each.key for each in asked)}", False
    if form == "keys with forms":
        return ", ".join(each.key if each.form == "string" else f"{each.key} ({each.form})" for each in asked), True
    if form == "skeleton":
        shown = {each.key: each.form if each.form != "string" else rng.choice(("string", "...")) for each in asked}
        return written(shown) if rng.random() < 0.5 else json.dumps(shown, ensure_ascii=False, indent=2), True
    if form == "questions":
        return "\n".join(f"{n}. {each.field.description} -> {each.key}" for n, each in enumerate(asked, start=1)), False
    if form == "table":
        rows = (f"| {each.key} | {each.form} | {each.field.description} |" for each in asked)
        return "\n".join(("| key | value | meaning |", *rows)), True
    if form == "types":
        rows = (f"  {json.dumps(each.key)}: {_type(each)} | null;" for each in asked)
        return "\n".join(("type Record = {", *rows, "}")), True
    assert form == "example"
    return f"{rng.choice(_words()['examples'])}: {written(example)}", True


def _type(asked: Asked) -> str:
    if asked.field.type == "goods":
        name, quantity, price = map(json.dumps, asked.goods_keys)
        return f"{{{name}: string, {quantity}: number, {price}: number}}[]"
    types = {"number": "number", "true or false": "boolean", "list of strings": "string[]", "string": "string"}
    return types.get(asked.form, f"string /* {asked.form} */")
