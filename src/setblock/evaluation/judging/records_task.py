"""Make a task of a file: prompts, prompts with their completions, or chats.

Knows the shapes of a line, those of training data. Knows nothing of models, nor of how an answer is judged.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setblock.data.tasks import Example, Task, Verdict
from setblock.data.tasks.task import Split
from setblock.data.texts.records import SUFFIXES, FileRecords, SourceRecord
from setblock.decoding.answer.text import messages_at
from setblock.errors import SetBlockError, check_one_of
from setblock.evaluation.judging.judges import DEFAULT_JUDGE, JUDGES


@dataclass(frozen=True)
class RecordExample(Example):
    """Hold a line: a prompt, or a chat up to the answer. `answer` is its reference; None where it has none."""

    chat: tuple[dict[str, Any], ...] = ()

    def asked(self, *, raw: bool) -> str | list[dict[str, Any]]:
        """See `Example.asked`. A chat needs a chat template, whatever `raw` says."""
        return list(self.chat) or (self.question if raw else self.messages)

    @property
    def prompt(self) -> str:
        """Return the prompt as it stands."""
        return self.question

    @property
    def completion(self) -> str | None:
        """Return the reference as it stands."""
        return self.answer


def task_of_records(path: Path, *, judge: str | None = None, raw: bool = False) -> Task[RecordExample]:
    """Return the task of a file of records, named like it. It has one split, `test`, and the examples in their order.

    Args:
        path: of a file of JSON lines or a Parquet file. A record has a `prompt`, with or without a `completion`, or `messages`.
            The reference of a chat is the assistant's message at its end, if there is one. Other columns have no effect.
        judge: one of `JUDGES`, which compares an answer with its reference; by default `exact-match`, if there are references.
        raw: whether prompts are continued as they stand, without a chat template.

    Raises:
        SetBlockError: the file can't be read or a record has another shape, some records have a reference and others have
            not, the judge needs references or others, or `raw` meets a chat.
    """
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

    def generate(split: Split, seed: int) -> Iterator[RecordExample]:
        return iter(examples)

    def verdict(example: RecordExample, answer: str) -> Verdict:
        assert example.answer is not None
        return judged(example.answer, answer)

    has_references = examples[0].answer is not None
    return Task(
        path.stem,
        f"the records of {path.name}",
        generate,
        verdict if has_references else None,
        raw=raw,
        splits=("test",),
    )


def _example(record: SourceRecord) -> RecordExample:
    columns, where = record.columns, record.where
    if ("prompt" in columns) == ("messages" in columns):
        raise SetBlockError(f"{where} must have either prompt or messages, not {', '.join(columns) or 'nothing'}")
    if "messages" in columns:
        return _chat(columns["messages"], where)
    prompt, completion = columns["prompt"], columns.get("completion")
    if not isinstance(prompt, str) or not prompt.strip():
        raise SetBlockError(f'{where} must have a text under "prompt", not {prompt!r}')
    if not isinstance(completion, str | None):
        raise SetBlockError(f'{where} must have a text under "completion", not {completion!r}')
    return RecordExample(prompt, completion)


def _chat(messages: Any, where: str) -> RecordExample:
    chat = messages_at(messages, where)
    reference = str(chat.pop()["content"]) if chat[-1]["role"] == "assistant" else None
    if not chat:
        raise SetBlockError(f"{where}: messages has an assistant's message alone, which answers nothing")
    return RecordExample(json.dumps(chat), reference, chat=tuple(chat))
