"""Tasks made from a file of prompts, prompts with completions, or chats. One reference judges an answer (`JUDGES`)."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from setblock.data.tasks import Task, TextExample, Verdict
from setblock.errors import SetBlockError, check_one_of
from setblock.json_lines import read_json

if TYPE_CHECKING:
    from setblock.data.texts.records import SourceRecord


def _last_number(reference: str, answer: str) -> Verdict:
    wanted, found = _number_in(reference), _number_in(answer)
    return Verdict(wanted is not None and wanted == found)


def _json(reference: str, answer: str) -> Verdict:
    """Score `fields`, too: the share of the reference's fields that the answer has with the same value."""
    wanted, found = _json_in(reference), _json_in(answer)
    right = wanted is not None and _same(found, wanted)
    if not isinstance(wanted, Mapping) or not isinstance(found, Mapping) or not wanted:
        return Verdict(right, {"fields": float(right)})
    same = sum(key in found and _same(found[key], value) for key, value in wanted.items())
    return Verdict(right, {"fields": same / len(wanted)})


DEFAULT_JUDGE = "exact-match"
JUDGES: dict[str, Callable[[str, str], Verdict]] = {
    "exact-match": lambda reference, answer: Verdict(answer.strip() == reference.strip()),
    "contains": lambda reference, answer: Verdict(reference.strip() in answer),
    "last-number": _last_number,
    "json": _json,
}
"""The judges by name; each is called with a reference and an answer. exact-match: the texts are equal, except for white space
around them. contains: the answer contains the reference. last-number: the last numbers of both are equal. json: both are the
same JSON value, with nothing around it. If the reference lacks the form that the judge needs, the answer counts as wrong."""


def _number_in(text: str) -> Decimal | None:
    found = re.findall(r"-?\d[\d,]*(?:\.\d+)?", text)
    return Decimal(found[-1].replace(",", "")) if found else None


def _json_in(text: str) -> Any:
    try:
        return read_json(text)
    except ValueError:
        return None


def _same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are the same. To Python, `true` is 1."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_same(value, other[key]) for key, value in one.items())
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(_same, one, other))
    return isinstance(one, bool) == isinstance(other, bool) and bool(one == other)


@dataclass(frozen=True)
class RecordExample(TextExample):
    """One line of the file: a prompt, or a chat up to the answer. `answer` is its reference; None if there is none."""

    chat: tuple[dict[str, Any], ...] = ()
    where: str = "a record"  # names it to a user
    columns: Mapping[str, Any] = field(default_factory=dict, repr=False)  # the line as it is in the file

    def requested(self, *, raw: bool) -> str | list[dict[str, Any]]:
        """See `Example.requested`. A chat needs a chat template, whatever `raw` says."""
        return list(self.chat) or super().requested(raw=raw)

    def reference_record(self, *, raw: bool) -> dict[str, Any]:
        """Return the prompt (see `requested`) and its reference as a training record. For a chat it is the line itself, with
        its tools and every answer in it."""
        if self.chat:
            return dict(self.columns)
        if raw:
            return {"prompt": self.prompt, "completion": self.completion}
        return {"messages": [*self.messages, {"role": "assistant", "content": self.answer}]}


def task_of_records(path: Path, *, judge: str | None = None, raw: bool = False) -> Task[RecordExample]:
    """Return the task of a file of records, named after the file. It has one split, `test`, with the examples in file order.

    The file has JSON lines, or is a Parquet file. A record has a `prompt`, with or without a `completion`, or `messages`. The
    reference of a chat is the assistant's message at its end, if there is one. Other columns have no effect. The `judge` is one
    of `JUDGES`, by default `exact-match` if there are references. `raw` continues prompts without a chat template.

    Raise `SetBlockError` if the file can't be read, a record has another shape, only some records have a reference, the
    judge needs references that are missing or of another form, or `raw` is set for a chat."""
    from setblock.data.texts.records import SUFFIXES, FileRecords

    if judge is not None:
        check_one_of("judge", judge, JUDGES)
    if not path.is_file():
        raise SetBlockError(f"can't read {path}: no such file")
    if not path.name.endswith(SUFFIXES):
        raise SetBlockError(
            f'{path} must end in one of {", ".join(SUFFIXES)}: write one object per line, such as {{"prompt": "..."}}'
        )
    judged = JUDGES[judge or DEFAULT_JUDGE]
    examples: list[RecordExample] = []
    for record in FileRecords([path], limit=None):
        example = _example(record)
        if examples and (example.answer is None) != (examples[0].answer is None):
            one, other = ("no", "one") if example.answer is None else ("a", "none")
            raise SetBlockError(
                f"{record.where} has {one} right answer, and the first record has {other}: give all of them one, or none"
            )
        if example.answer is not None and not judged(example.answer, example.answer).right:
            raise SetBlockError(
                f"{record.where}: judge {judge or DEFAULT_JUDGE} can't compare with {example.answer[:60]!r}"
            )
        if raw and example.chat:
            raise SetBlockError(
                f"{record.where} is a chat, which needs the chat template: leave out raw, or give a prompt"
            )
        examples.append(example)
    if not examples:
        raise SetBlockError(f"{path} has no records: write one object per line, with the key prompt or messages")
    if judge is not None and examples[0].answer is None:
        raise SetBlockError(
            f"judge {judge} needs right answers, and {path} has none: give each prompt a completion, and each chat an answer"
        )

    def verdict(example: RecordExample, answer: str) -> Verdict:
        assert example.answer is not None
        return judged(example.answer, answer)

    judge_of_task = None if examples[0].answer is None else verdict
    title = f"the records of {path.name}"
    return Task(path.stem, title, lambda split, seed: iter(examples), judge_of_task, raw=raw, splits=("test",))


def _example(record: "SourceRecord") -> RecordExample:
    columns, where = record.columns, record.where
    if record.fault is not None:
        raise SetBlockError(f"{where}: {record.fault}")
    if ("prompt" in columns) == ("messages" in columns):
        raise SetBlockError(f"{where} must have either prompt or messages, not {', '.join(columns) or 'nothing'}")
    if "messages" in columns:
        from setblock.decoding.answer.prompt import messages_at

        chat = messages_at(columns["messages"], where)
        reference = str(chat.pop()["content"]) if chat[-1]["role"] == "assistant" else None
        if not chat:
            raise SetBlockError(f"{where}: messages has an assistant's message alone, which answers nothing")
        return RecordExample(json.dumps(chat), reference, chat=tuple(chat), where=where, columns=columns)
    prompt, completion = columns["prompt"], columns.get("completion")
    if not isinstance(prompt, str) or not prompt.strip():
        raise SetBlockError(f'{where} must have a text under "prompt", not {prompt!r}')
    if not isinstance(completion, str | None):
        raise SetBlockError(f'{where} must have a text under "completion", not {completion!r}')
    return RecordExample(prompt, completion, where=where)
