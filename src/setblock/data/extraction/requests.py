"""Requests: the words in which a record is asked for, and the forms in which a schema is told.

Knows phrasings. Knows nothing of what is asked for, or of how the message was written.
"""

import json
import random
from collections.abc import Iterator

from setblock.data.extraction.asking import LISTS, NUMBERS, Asked
from setblock.data.extraction.records import Record, written
from setblock.data.extraction.writing import Message

_FORMS = (
    "bullets",
    "bullets",
    "meanings",
    "keys",
    "keys",
    "keys with forms",
    "skeleton",
    "skeleton",
    "questions",
    "table",
    "types",
    "example",
)
_OPENINGS = (
    "Extract the data from this message as JSON.",
    "Turn the message into one JSON object.",
    "Read the message and fill in the record.",
    "Please pull these details out of the text below and give me JSON.",
    "You read incoming mail and file it. Answer with one JSON object that has exactly these keys:",
    "What does the message say about the following? Answer in JSON.",
    "Make a JSON record of the message, with these keys in this order:",
    "I need the following from the message, as JSON:",
    "Parse the text. The result is a JSON object:",
    "Convert to JSON.",
    "Get these fields out of the message.",
    "From the text, extract:",
    "Fill this in from the text:",
    "Task: information extraction. Output: one JSON object.",
    "Here is a message that somebody has to type into our system. Do it for me, in JSON.",
    "Return the facts of the message as a JSON object.",
)
_NULLS = (
    "Use null for what the message does not say.",
    "If something is missing, write null.",
    "null where nothing is said.",
    "Put null for anything that is not in the text.",
    "Missing values are null.",
    "Don't guess: what isn't stated is null.",
)
_CONVENTIONS = (
    "Dates in the message are {}.",
    "The message writes dates as {}.",
    "Its dates are {}.",
    "Note that numeric dates there are {}.",
)
_ONLY = (
    "Answer with the JSON only.",
    "No explanation, just JSON.",
    "Nothing but the object, on one line.",
    "Reply with JSON and nothing else.",
    "Copy names exactly as they stand.",
)
_FRAMES = (
    "Message:\n{}",
    "{}",
    "---\n{}\n---",
    '"""\n{}\n"""',
    "<message>\n{}\n</message>",
    "Text:\n\n{}",
    "```\n{}\n```",
    "### Message\n{}",
    "[start]\n{}\n[end]",
)
_EXAMPLES = ("An example of the form, from another message", "Same form as this record of another message")


def question(message: Message, asked: list[Asked], example: Record, rng: random.Random) -> str:
    """What a user writes: the task, the schema, what to do where something is missing, and the message.

    Args:
        example: a record of another message in the same form, which may be shown in place of a schema.
    """
    form = rng.choice(_FORMS)
    schema, says_forms = _schema(form, asked, example, rng)
    opening = rng.choice(_OPENINGS)
    rules = [rng.choice(_NULLS)]
    if not says_forms:
        rules += _forms(asked, rng)
    if message.style.convention is not None:
        rules.append(rng.choice(_CONVENTIONS).format(message.style.convention))
    if rng.random() < 0.6:
        rules.append(rng.choice(_ONLY))
    rng.shuffle(rules)
    told = " ".join(rules) if rng.random() < 0.7 else "\n".join(f"- {rule}" for rule in rules)
    text = rng.choice(_FRAMES).format(message.text)
    if rng.random() < 0.3:
        return f"{text}\n\n{opening}\n{schema}\n{told}"
    return f"{opening}\n{schema}\n{told}\n\n{text}"


def _forms(asked: list[Asked], rng: random.Random) -> Iterator[str]:
    types = {each.field.type for each in asked}
    if "date" in types:
        yield rng.choice(("Dates as YYYY-MM-DD.", "Write dates as YYYY-MM-DD.", "All dates in ISO form (YYYY-MM-DD)."))
    if "time" in types:
        yield rng.choice(("Times as HH:MM.", "Use 24-hour times (HH:MM).", "Times are HH:MM, 24 hours."))
    if types & {*NUMBERS, "goods"}:
        yield rng.choice(
            ("Numbers without units.", "Amounts are plain numbers.", "Give amounts and counts as numbers.")
        )
    if "currency" in types:
        yield rng.choice(("Currencies as ISO codes.", "The currency is a three-letter code."))
    if "flag" in types:
        yield rng.choice(("Use true or false for yes or no.", "Yes/no fields are true or false."))
    if types & set(LISTS):
        yield rng.choice(("Several values make a list of strings.", "Use a list where there are several."))
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
        return f"{rng.choice(('Keys', 'Fields', 'Wanted'))}: {', '.join(each.key for each in asked)}", False
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
    return f"{rng.choice(_EXAMPLES)}: {written(example)}", True


def _type(asked: Asked) -> str:
    if asked.field.type == "goods":
        name, quantity, price = map(json.dumps, asked.goods_keys)
        return f"{{{name}: string, {quantity}: number, {price}: number}}[]"
    types = {"number": "number", "true or false": "boolean", "list of strings": "string[]", "string": "string"}
    return types.get(asked.form, f"string /* {asked.form} */")
