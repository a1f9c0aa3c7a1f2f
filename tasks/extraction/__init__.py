"""Ask for records: a message and the keys of a record in, one JSON object out, asked as a chat.

    setblock evaluate --model models/smollm2-records --task tasks/extraction

A task of this repository and not of the package, loaded by its path as any user's. Knows which wordings and places a split may
have, and how an answer is judged. The other files write messages with their records; a kind of message is a file of `kinds/`
or `other_kinds/`.
"""

import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import yaml

from setblock.data.tasks.task import ChatExample, Split, Task, Verdict

from .asking import question, record_of, requested_fields
from .asks import request_in_any_wording
from .kinds import Kind, Wording, kinds, other_kinds
from .locales import TEST_LOCALE, locales
from .records import Record, is_right, record_in, right_fields, written
from .values import Values
from .writing import Writer

_OWN_SHARE = 0.5  # of held-out splits, messages whose wording is in no other split


@dataclass(frozen=True)
class Extraction(ChatExample):
    """Hold a message with the request for its record, which `answer` is as JSON. Its identity is a name in the message.

    Attributes:
        wanted: the record.
        wording: the name of the message's wording; empty where no generator wrote it.
        locale: whose names and forms it has; empty in the same case.
    """

    wanted: Record = field(default_factory=dict)
    wording: str = ""
    locale: str = ""


def extractions(
    split: Split,
    seed: int = 0,
    *,
    of: Callable[[], tuple[Kind, ...]] = kinds,
    own_wordings: bool = False,
    any_ask: bool = False,
) -> Iterator[Extraction]:
    """Yield endless distinct examples. Names of people and companies are of one split; so are half of all wordings,
    which only the test split has, and a few that only the validation split has. The other half of a held-out split has
    wordings of training.

    Args:
        of: returns the kinds of messages.
        own_wordings: give only wordings that no other split has.
        any_ask: ask in many ways, and not in the task's one.
    """
    rng = random.Random(f"extraction-{split}-{seed}{'-any-ask' if any_ask else ''}")
    by_split = {
        each: [(kind, wording) for kind in of() for wording in kind.wordings if wording.split == each]
        for each in ("train", split)
    }
    usual = [each for each in locales() if each != TEST_LOCALE]
    seen: set[str] = set()
    while True:
        own = own_wordings or rng.random() < _OWN_SHARE
        kind, wording = rng.choice(by_split[split if own else "train"])
        locale = TEST_LOCALE if split == "test" and rng.random() < 0.2 else rng.choice(usual)
        found = _write(kind, wording, locale, split, rng, any_ask=any_ask)
        if found is not None and found.question not in seen:
            seen.add(found.question)
            yield found


def _write(
    kind: Kind, wording: Wording, locale: str, split: Split, rng: random.Random, *, any_ask: bool
) -> Extraction | None:
    values = Values(locale, split, rng)
    message = Writer(kind, values, rng).write(wording)
    fields = requested_fields(kind, message, wording, rng)
    if fields is None or not values.names:
        return None
    if any_ask:
        requested, record = request_in_any_wording(message, fields, split, rng)
    else:
        requested, record = question(message, fields), record_of(fields, message)
    return Extraction(requested, written(record), values.names[0], record, wording.name, locale)


def handwritten(split: Split, seed: int = 0) -> Iterator[Extraction]:
    """Yield the messages that no generator wrote, in an order that the seed draws; the seed 0 keeps that of the file."""
    text = Path(__file__).with_name("handwritten.yaml").read_text(encoding="utf-8")
    written_by_hand = yaml.safe_load(text)
    if seed:
        random.Random(seed).shuffle(written_by_hand)
    for each in written_by_hand:
        yield Extraction(each["question"].strip(), written(each["record"]), wanted=each["record"])


def judge_record(example: Extraction, answer: str) -> Verdict:
    """Judge an answer: `fields` is the share of fields that are right, `record` whether all are."""
    found = record_in(answer)
    right = is_right(example.wanted, found)
    return Verdict(right, {"fields": right_fields(example.wanted, found), "record": float(right)})


TASKS = (
    Task("extraction", "the record of a message, as JSON; right if every field is", extractions, judge_record),
    Task(
        "extraction-unseen",
        "the same, of messages whose wording is in no other split",
        partial(extractions, own_wordings=True),
        judge_record,
        splits=("validation", "test"),
    ),
    Task(
        "extraction-any-ask",
        "the same, asked in many ways: other words, keys and orders",
        partial(extractions, any_ask=True),
        judge_record,
    ),
    Task(
        "extraction-any-kind",
        "the same, asked in many ways, of other kinds of messages; those of a held-out split are in no other",
        partial(extractions, of=other_kinds, own_wordings=True, any_ask=True),
        judge_record,
    ),
    Task(
        "extraction-handwritten",
        "the same, of 40 messages that no generator wrote",
        handwritten,
        judge_record,
        splits=("test",),
    ),
)
