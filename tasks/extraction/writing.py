"""Write a message from a wording, and record what the message says.

Knows choices and slots. Knows nothing of which fields are asked for.

In a wording, `[a|b|]` is one of its parts, and parts may hold choices. `{field}` is its value as the message's style
writes it, `{flag?yes:no}` one of two texts, `{first..last}` two dates, `{person.first}` a part that isn't the whole, and
`{field:how}` a value in a certain way. `¦` is a bar that separates no parts.
"""

import random
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from .kinds import Field, Kind, Wording
from .style import WORDS, Style
from .values import Value, Values, slug

_CHOICE = re.compile(r"\[([^\[\]]*)\]")
_FLAG = re.compile(r"\{(\w+)\?((?:[^{}:]|\{\w+\})*):((?:[^{}:]|\{\w+\})*)\}")
_SLOT = re.compile(r"\{(\w+)(?:\.\.(\w+)|\.(\w+))?(?::(\w+))?\}")
AMOUNTS = ("amount", "sum", "share", "plus")
"""Types of fields that are an amount of money."""

_TYPO_SHARE = 0.05  # of the words of a careless writer
_SINGULAR = {"people": "person", "boxes": "box"}
_COUNTED = (
    "bags boxes colleagues guests kilos minutes months nights owners parcels people persons places rooms users years"
)
_ONE_OF_MANY = re.compile(rf"\b(1|one) ({'|'.join(_COUNTED.split())})\b")


@dataclass
class WrittenMessage:
    """Hold a message in the making.

    Attributes:
        text: the message.
        shown: the fields it shows, with the values that a record has: dates and times are still such.
        partly: fields of which it shows a part.
        style: how its writer writes.
    """

    text: str
    style: Style
    shown: dict[str, Value] = field(default_factory=dict)
    partly: set[str] = field(default_factory=set)


class Writer:
    """Write one message of a kind.

    Args:
        kind: whose fields the wording names.
        values: draws values.
        rng: draws everything else.
    """

    def __init__(self, kind: Kind, values: Values, rng: random.Random) -> None:
        self.kind = kind
        self.values = values
        self.rng = rng
        self._drawn: dict[str, Value] = {}

    def value(self, name: str) -> Value:
        """Return the value of a field, which is drawn when it is first asked for."""
        if name not in self._drawn:
            field = self.kind.fields[name]
            self._drawn[name] = self.values.draw(field.type, field.options, self.value)
        return self._drawn[name]

    def write(self, wording: Wording) -> WrittenMessage:
        """Return a message with this wording."""
        message = WrittenMessage("", Style(self.values.locale, self.rng))
        text = self._decided(self._chosen(wording.text), message)
        pieces, here = [], 0
        for slot in _SLOT.finditer(text):
            pieces += [self._careless(text[here : slot.start()], wording), self._filled(slot, message)]
            here = slot.end()
        pieces.append(self._careless(text[here:], wording))
        message.text = self._laid_out(_numbered("".join(pieces)))
        return message

    def _chosen(self, text: str) -> str:
        while found := _CHOICE.search(text):
            parts = found[1].split("|")
            chosen = self.rng.choice(parts) if len(parts) > 1 else f"\1{found[1]}\2"
            before, after = text[: found.start()], text[found.end() :]
            if not chosen and before.endswith(" ") and after[:1] in (*" \n.,;:!?)", ""):
                before = before[:-1]
            text = before + chosen + after
        return text.replace("\1", "[").replace("\2", "]").replace("¦", "|")

    def _decided(self, text: str, message: WrittenMessage) -> str:
        for flag in _FLAG.finditer(text):
            message.shown[flag[1]] = self.value(flag[1])
        return _FLAG.sub(lambda flag: flag[2] if self.value(flag[1]) else flag[3], text)

    def _filled(self, slot: re.Match[str], message: WrittenMessage) -> str:
        name, until, part, how = slot.groups()
        value = self.value(name)
        if part is not None:
            message.partly.add(name)
            first, _, last = value.rpartition(" ")
            parts: dict[str, str] = {"first": first, "last": last, "slug": slug(value)[:20]}
            return parts[part]
        if until is not None:
            message.shown |= {name: value, until: self.value(until)}
            return message.style.dates(value, self.value(until))
        field = self.kind.fields[name]
        text = _written(field, value, how, message.style)
        message.shown[name] = text if how == "cap" else value
        if field.type in (*AMOUNTS, "goods"):
            message.shown["currency"] = message.style.locale.currency
        return text

    def _careless(self, text: str, wording: Wording) -> str:
        if "typos" in wording.flags:
            text = re.sub(r"[A-Za-z]{4,}", self._mistyped, text)
        return text.lower() if "lower" in wording.flags else text

    def _mistyped(self, word: re.Match[str]) -> str:
        text = word[0]
        if self.rng.random() >= _TYPO_SHARE:
            return text
        place = self.rng.randrange(1, len(text) - 1)
        before, letter, after = text[:place], text[place], text[place + 1 :]
        return self.rng.choice((before + after, before + letter * 2 + after, before + after[0] + letter + after[1:]))

    def _laid_out(self, text: str) -> str:
        text = re.sub(r"[ ]+$", "", text, flags=re.MULTILINE)
        # After `p.m.` or `S.A.` a sentence ends without a dot of its own.
        text = re.sub(r"(?<!\.)\.\.(?!\.)", ".", text)
        text = re.sub(r"\n{3,}", "\n\n", text).strip()
        how = self.rng.random()
        if how < 0.1:
            return text.replace("\n\n", "\n")
        if how < 0.13:
            return text.replace("\n", "<br>\n")
        return text


def _numbered(text: str) -> str:
    """Make a word singular after one, turn `2 bag(s)` into `2 bags`, and write `an` before a vowel."""
    text = re.sub(r"\b(\w+) (\w+(?: \w+)?)\(s\)", lambda m: f"{m[1]} {m[2]}{'' if m[1] in ('1', 'one') else 's'}", text)
    text = re.sub(r"\ba (?=[AEIOaeio])", "an ", text)
    return _ONE_OF_MANY.sub(lambda m: f"{m[1]} {_SINGULAR.get(m[2], m[2][:-1])}", text)


def _written(field: Field, value: Value, how: str | None, style: Style) -> str:
    """Return a value as a writer writes it."""
    if field.type == "goods":
        return _goods(value, how, style)
    if field.type in ("several", "people"):
        if how == "lines":
            return "\n".join(f"- {each}" for each in value)
        return ", ".join(value[:-1]) + f" and {value[-1]}"
    if field.type in AMOUNTS:
        return style.amount(value)
    if how == "word":
        return WORDS[value] if value < len(WORDS) else str(value)
    writes: dict[str, Callable[[Any], str]] = {"date": style.date, "time": style.time, "quantity": style.quantity}
    if field.type in writes:
        return writes[field.type](value)
    if field.type == "decimal":
        return style.decimal(value, 1)
    return f"{value[0].upper()}{value[1:]}" if how == "cap" else str(value)


def _goods(goods: list[dict[str, Value]], how: str | None, style: Style) -> str:
    lined = ("{n} x {name} at {p}", "{n} {name}, {p} each", "{name}, {n} pcs, {p} per piece", "{name} (qty {n}) @ {p}")
    inline = ("{n} x {name} at {p}", "{name} ({n} pieces at {p})", "{n} times {name} for {p} each")
    forms = {"table": ("| {name} | {n} | {p} |",), "lines": lined}.get(how or "", inline)
    form = style.rng.choice(forms)
    lines = [form.format(name=each["name"], n=each["quantity"], p=style.amount(each["price"])) for each in goods]
    if how == "table":
        return "\n".join(("| article | quantity | unit price |", *lines))
    if how == "lines":
        mark = style.rng.choice(("- ", "* ", "", "  "))
        return "\n".join(mark + line for line in lines)
    separator = style.rng.choice((", ", "; "))
    return lines[0] if len(lines) == 1 else f"{separator.join(lines[:-1])} and {lines[-1]}"
