"""Choose which fields of a message to ask for, in which words, and what the record says of them.

Knows fields and messages. Knows nothing of how a message was written.
"""

import random
import re
from collections.abc import Iterable
from datetime import date, time

from .kinds import Field, Kind, Wording
from .records import Record, written
from .values import Value
from .writing import WrittenMessage

FEWEST_TOKENS, MOST_TOKENS = 50, 185  # of an answer, as `tokens_about` counts them
_FORMS = {"date": "Dates: YYYY-MM-DD.", "time": "Times: HH:MM.", "goods": "Goods: name, quantity, unit_price."}


def requested_fields(kind: Kind, message: WrittenMessage, wording: Wording, rng: random.Random) -> list[Field] | None:
    """Return the fields to ask for, in the order of the kind: some that the message has, a few that it does not.

    None where no choice of them makes an answer of fair length.
    """
    askable = [
        field
        for field in kind.fields.values()
        if field.key
        and field.name not in wording.unclear
        and (field.name not in message.partly or field.name in message.shown)
    ]
    stated = [field for field in askable if field.name in message.shown]
    missing = [field for field in askable if field.name not in message.shown]
    rng.shuffle(stated)
    chosen = stated + rng.sample(missing, min(len(missing), rng.choice((0, 1, 1, 2))))
    while len(chosen) > 2:
        length = tokens_about(written(record_of(chosen, message)))
        if length <= MOST_TOKENS:
            return sorted(chosen, key=askable.index) if length >= FEWEST_TOKENS else None
        chosen.pop(0)
    return None


def record_of(fields: Iterable[Field], message: WrittenMessage) -> Record:
    """Return what a message says of fields: None where it has no value."""
    return {field.key: _plain(message.shown.get(field.name)) for field in fields}


def question(message: WrittenMessage, fields: Iterable[Field]) -> str:
    """Return what a user writes: the keys of the record, how values are written, and the message."""
    fields = list(fields)
    types = {field.type for field in fields}
    rules = [form for type_, form in _FORMS.items() if type_ in types]
    if message.style.convention is not None:
        rules.append(f"Dates in the message are {message.style.convention}.")
    keys = ", ".join(field.key for field in fields)
    return " ".join((f"JSON record with the keys {keys}. Missing: null.", *rules)) + f"\n\n{message.text}"


def tokens_about(text: str) -> int:
    """Return about how many tokens a tokenizer with a token for each digit makes of a record."""
    digits = len(re.findall(r"\d", text))
    words = sum(1 + (len(word) - 1) // 4 for word in re.findall(r"[^\W\d_]+", text))
    return digits + words + len(re.findall(r"[^\w\s]+|_", text))


def _plain(value: Value) -> Value:
    """Return a value as JSON has it."""
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, time):
        return f"{value:%H:%M}"
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return [
            {"name": each["name"], "quantity": each["quantity"], "unit_price": _plain(each["price"])} for each in value
        ]
    return value
