"""Asking: which fields of a message are asked for, in which order, under which keys and in which form.

Knows fields. Knows nothing of the words in which they are asked for, or of how the message was written.
"""

import random
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date, time

from setblock.data.extraction.kinds import Field, Kind, Wording
from setblock.data.extraction.records import written
from setblock.data.extraction.values import Value
from setblock.data.extraction.writing import AMOUNTS, WrittenMessage

FEWEST_TOKENS, MOST_TOKENS = 50, 185  # of an answer, as `tokens_about` counts them
NUMBERS = (*AMOUNTS, "number", "quantity", "decimal", "between_dates")
LISTS = ("several", "people")


@dataclass(frozen=True)
class Asked:
    """A field that is asked for.

    Attributes:
        key: its name in the record.
        field: what it is.
        goods_keys: the names of name, quantity and price within goods.
    """

    key: str
    field: Field
    goods_keys: tuple[str, str, str]

    @property
    def form(self) -> str:
        """How its value is to be written."""
        if self.field.type == "goods":
            return "list of {" + ", ".join(f'"{key}"' for key in self.goods_keys) + "}"
        forms = {"date": "YYYY-MM-DD", "time": "HH:MM", "flag": "true or false", "currency": "ISO code"}
        numbers = dict.fromkeys(NUMBERS, "number") | dict.fromkeys(LISTS, "list of strings")
        return (forms | numbers).get(self.field.type, "string")

    def value(self, message: WrittenMessage) -> Value:
        """Its value in the record: None where the message doesn't tell it."""
        value = message.shown.get(self.field.name)
        if isinstance(value, date):
            return value.isoformat()
        if isinstance(value, time):
            return f"{value:%H:%M}"
        if self.field.type == "goods" and value is not None:
            return [
                dict(zip(self.goods_keys, (each["name"], each["quantity"], _plain(each["price"])), strict=True))
                for each in value
            ]
        return _plain(value) if isinstance(value, float) else value


def _plain(number: float) -> float | int:
    return int(number) if number == int(number) else number


def tokens_about(text: str) -> int:
    """About how many tokens a tokenizer with a token for each digit makes of a record."""
    digits = len(re.findall(r"\d", text))
    words = sum(1 + (len(word) - 1) // 4 for word in re.findall(r"[^\W\d_]+", text))
    return digits + words + len(re.findall(r"[^\w\s]+|_", text))


class Asker:
    """Asks for the record of one message.

    Args:
        kind: the kind of the message.
        rng: draws fields, keys and phrasings.
    """

    def __init__(self, kind: Kind, rng: random.Random) -> None:
        self.kind = kind
        self.rng = rng

    def fields(self, message: WrittenMessage, wording: Wording) -> list[Asked] | None:
        """The fields to ask for, in their order; None where no choice of them makes an answer of fair length."""
        askable = [
            field
            for field in self.kind.fields.values()
            if field.keys
            and field.name not in wording.unclear
            and (field.name not in message.partly or field.name in message.shown)
        ]
        self.rng.shuffle(askable)
        told = [field for field in askable if field.name in message.shown]
        open_ = [field for field in askable if field.name not in message.shown]
        wanted = self.rng.choice((4, 5, 6, 6, 7, 8, 9, 10))
        nulls = min(len(open_), self.rng.choices((0, 1, 2, 3), (45, 30, 18, 7))[0], max(1, wanted // 2))
        chosen = told[: max(wanted - nulls, 2)] + open_[:nulls]
        spare = told[max(wanted - nulls, 2) :]
        self.rng.shuffle(chosen)
        case = self.rng.choice(_CASES)
        goods_keys = self._goods_keys(case)
        while True:
            asked = list(self._keyed(chosen, message, case, goods_keys))
            length = tokens_about(written({each.key: each.value(message) for each in asked}))
            if FEWEST_TOKENS <= length <= MOST_TOKENS:
                return asked
            if length > MOST_TOKENS and len(chosen) > 3:
                chosen.pop()
            elif length < FEWEST_TOKENS and spare:
                chosen.insert(self.rng.randint(0, len(chosen)), spare.pop())
            else:
                return None

    def _keyed(
        self, chosen: list[Field], message: WrittenMessage, case: str, goods_keys: tuple[str, str, str]
    ) -> Iterator[Asked]:
        taken: set[str] = set()
        for field in chosen:
            keys = [key for key in field.keys if key not in taken]
            # What is missing may have a rival in the message, which only a clear name excludes.
            key = keys[0] if field.name not in message.shown else self.rng.choice(keys)
            taken.add(key)
            yield Asked(_cased(key, case), field, goods_keys)

    def _goods_keys(self, case: str) -> tuple[str, str, str]:
        drawn = (
            ("name", "item", "product", "article"),
            ("quantity", "qty", "count", "pieces"),
            ("unit_price", "price", "price_each"),
        )
        name, quantity, price = (_cased(self.rng.choice(keys), case) for keys in drawn)
        return name, quantity, price


def _cased(key: str, case: str) -> str:
    words = key.split("_")
    if case == "camel":
        return words[0] + "".join(word.capitalize() for word in words[1:])
    if case == "title":
        return " ".join(words).capitalize()
    return {"snake": "_", "kebab": "-", "spaces": " "}[case].join(words)


_CASES = ("snake", "snake", "snake", "snake", "camel", "camel", "kebab", "title", "spaces")
