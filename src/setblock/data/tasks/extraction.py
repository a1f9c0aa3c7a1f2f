"""Ask for records: a message and a schema in, one JSON object out, asked as a chat.

Knows how an answer is judged. The messages are in `setblock.data.extraction`.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from importlib.resources import files

import yaml

from setblock.data.extraction.inquiries import inquiries
from setblock.data.extraction.records import Record, is_right, record_in, right_fields, written
from setblock.data.splits import Split
from setblock.data.tasks.task import ChatExample, Task, Verdict


@dataclass(frozen=True)
class Extraction(ChatExample):
    """Hold a message with the request for its record, which `answer` is as JSON.

    Attributes:
        wanted: the record.
        wording: the name of the message's wording; empty where no generator wrote it.
        locale: whose names and forms it has; likewise.
    """

    wanted: Record = field(default_factory=dict)
    wording: str = ""
    locale: str = ""


def extractions(split: Split, seed: int = 0, *, own_wordings: bool = False) -> Iterator[Extraction]:
    """Yield endless examples; see `setblock.data.extraction.inquiries`."""
    for each in inquiries(split, seed, own_wordings=own_wordings):
        answer = written(each.record)
        yield Extraction(each.question, answer, each.identity, each.record, each.wording, each.locale)


def handwritten(split: Split, seed: int = 0) -> Iterator[Extraction]:
    """Yield the messages that no generator wrote, in an order that the seed draws; the seed 0 keeps that of the file."""
    text = files("setblock.data.extraction").joinpath("handwritten.yaml").read_text(encoding="utf-8")
    written_by_hand = yaml.safe_load(text)
    if seed:
        random.Random(seed).shuffle(written_by_hand)
    for each in written_by_hand:
        yield Extraction(each["question"].strip(), written(each["record"]), wanted=each["record"])


def _judge(example: Extraction, answer: str) -> Verdict:
    """Judge an answer: `fields` is the share of fields that are right, `record` whether all are."""
    found = record_in(answer)
    right = is_right(example.wanted, found)
    return Verdict(right, {"fields": right_fields(example.wanted, found), "record": float(right)})


TASKS = (
    Task("extraction", "the record of a message, as JSON; right if every field is", extractions, _judge),
    Task(
        "extraction-unseen",
        "the same, of messages whose wording is in no other split",
        partial(extractions, own_wordings=True),
        _judge,
        splits=("validation", "test"),
    ),
    Task(
        "extraction-handwritten",
        "the same, of 40 messages that no generator wrote",
        handwritten,
        _judge,
        splits=("test",),
    ),
)
