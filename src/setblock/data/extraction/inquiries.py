"""Draw the messages of a split, each with the request for its record, and the record.

Knows which wordings and places a split may have. Knows nothing of how an answer is judged.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

from setblock.data.extraction.asking import asked_fields, question, record_of
from setblock.data.extraction.kinds import Kind, Wording, kinds
from setblock.data.extraction.locales import TEST_LOCALE, locales
from setblock.data.extraction.records import Record
from setblock.data.extraction.values import Values
from setblock.data.extraction.writing import Writer
from setblock.data.splits import Split

_OWN_SHARE = 0.5  # of held-out splits, messages whose wording is in no other split


@dataclass(frozen=True)
class Inquiry:
    """Hold a message with a request for its record.

    Attributes:
        question: both, as a user would send them.
        record: the right answer.
        wording: the name of the message's wording.
        locale: whose names and forms it has.
        identity: a name in the message, which is in no other split.
    """

    question: str
    record: Record
    wording: str
    locale: str
    identity: str


def inquiries(split: Split, seed: int = 0, *, own_wordings: bool = False) -> Iterator[Inquiry]:
    """Yield endless distinct inquiries. Names of people and companies are of one split; so are half of all wordings,
    which only the test split has, and a few that only the validation split has. The other half of a held-out split has
    wordings of training.

    Args:
        own_wordings: give only wordings that no other split has.
    """
    rng = random.Random(f"extraction-{split}-{seed}")
    by_split = {
        each: [(kind, wording) for kind in kinds() for wording in kind.wordings if wording.split == each]
        for each in ("train", split)
    }
    usual = [each for each in locales() if each != TEST_LOCALE]
    seen: set[str] = set()
    while True:
        own = own_wordings or rng.random() < _OWN_SHARE
        kind, wording = rng.choice(by_split[split if own else "train"])
        locale = TEST_LOCALE if split == "test" and rng.random() < 0.2 else rng.choice(usual)
        inquiry = _write(kind, wording, locale, split, rng)
        if inquiry is not None and inquiry.question not in seen:
            seen.add(inquiry.question)
            yield inquiry


def _write(kind: Kind, wording: Wording, locale: str, split: Split, rng: random.Random) -> Inquiry | None:
    values = Values(locale, split, rng)
    message = Writer(kind, values, rng).write(wording)
    fields = asked_fields(kind, message, wording, rng)
    if fields is None:
        return None
    return Inquiry(question(message, fields), record_of(fields, message), wording.name, locale, values.names[0])
