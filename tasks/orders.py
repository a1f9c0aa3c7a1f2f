"""Ask for records of one shop's mail: orders, deliveries and returns. Each kind of message has its fixed keys.

    setblock evaluate --model models/smollm2-records --task tasks/orders.py

A shop that fine-tunes a model knows how its mail is worded. So the wordings of training are also those of the test. Names of
people and companies are of one split; numbers, dates, amounts and goods are drawn anew. Half of the messages are American and
half are British. Knows which keys, wordings and places there are. The package `extraction` in this folder writes messages.
"""

import random
from collections.abc import Iterator

from extraction import Extraction, judge_record
from extraction.asking import question, record_of
from extraction.kinds import Kind, Wording, kinds
from extraction.records import written
from extraction.values import Values
from extraction.writing import Writer
from setblock.data.tasks.task import Split, Task

KEYS = {
    "order": ("order_number", "customer_name", "delivery_date", "items", "total", "currency"),
    "delivery": ("tracking_number", "carrier", "recipient", "delivery_date", "window_start", "window_end", "parcels"),
    "refund": ("order_number", "customer_name", "product", "reason", "purchase_date", "refund_amount", "currency"),
}
"""Of each kind's record, in their order."""

LOCALES = ("en_US", "en_GB")


def orders(split: Split, seed: int = 0) -> Iterator[Extraction]:
    """Yield endless distinct messages of a split."""
    rng = random.Random(f"orders-{split}-{seed}")
    wordings = [
        (kind, wording)
        for kind in kinds()
        if kind.name in KEYS
        for wording in kind.wordings
        if wording.split == "train" and not _requested(kind) & wording.unclear
    ]
    seen: set[str] = set()
    while True:
        kind, wording = rng.choice(wordings)
        found = _write(kind, wording, rng.choice(LOCALES), split, rng)
        if found is not None and found.question not in seen:
            seen.add(found.question)
            yield found


def _write(kind: Kind, wording: Wording, locale: str, split: Split, rng: random.Random) -> Extraction | None:
    values = Values(locale, split, rng)
    message = Writer(kind, values, rng).write(wording)
    by_key = {field.key: field for field in kind.fields.values()}
    fields = [by_key[key] for key in KEYS[kind.name]]
    partly = {field.name for field in fields} & message.partly - message.shown.keys()
    if partly or not values.names:
        return None
    record = record_of(fields, message)
    return Extraction(question(message, fields), written(record), values.names[0], record, wording.name, locale)


def _requested(kind: Kind) -> set[str]:
    """Return the names of the fields that are asked for."""
    return {field.name for field in kind.fields.values() if field.key in KEYS[kind.name]}


TASKS = (Task("orders", "the record of one shop's message, as JSON; right if every field is", orders, judge_record),)
