"""Regenerate the answers of a data set by the model that is to be trained.

Knows records, decoding and a file of results. Knows nothing of training. A model that learns to decode its own answers in
blocks need not learn to write others'; that is what fewer tokens can do (Fast-dLLM v2, arXiv 2509.26328, trains on the data of
its base model; TiDAR, arXiv 2511.08923, and speculative drafters on regenerated answers).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from setblock.data.section import DataSection
from setblock.data.texts.encoding import shape_of, value_of
from setblock.data.texts.records import records_of
from setblock.decoding.answer.text import Prompt
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError
from setblock.files import whole_lines
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class Question:
    """Hold what is to be answered again.

    Attributes:
        where: names its record to a user.
        prompt: a text to continue, or the messages before the last answer.
    """

    where: str
    prompt: Prompt

    def answered(self, text: str) -> dict[str, Any]:
        """Return the record of an answer, in the shape that it was asked in."""
        if isinstance(self.prompt, str):
            return {"prompt": self.prompt, "completion": text}
        return {"messages": [*self.prompt, {"role": "assistant", "content": text}]}

    def asks(self, record: dict[str, Any]) -> bool:
        """Return whether a record holds an answer to this."""
        asked = record.get("prompt") if isinstance(self.prompt, str) else record.get("messages", [])[:-1]
        return bool(asked == self.prompt)


def questions_of(section: DataSection) -> Iterator[Question]:
    """Yield the questions of a recipe's data; of chats, the last answer is asked for, or the first where there is none.

    Raises:
        SetBlockError: the data can't be read, or has no answers to ask for.
    """
    for source in section.sources:
        shape = None
        for record in records_of(source, streaming=section.streaming):
            shape = shape or shape_of(source, record)
            try:
                yield Question(record.where, _prompt([value_of(record, column, shape) for column in shape.columns]))
            except SetBlockError as error:
                raise SetBlockError(f"{record.where}: {error}") from error


def _prompt(values: list[Any]) -> Prompt:
    if len(values) == 2:
        return str(values[0])
    if isinstance(values[0], str):
        raise SetBlockError("a text has no prompt to answer; prompts and completions, or messages, are needed")
    messages = list(values[0])
    answers = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if answers:  # the last one is written again; else the first is written
        messages = messages[: answers[-1]]
    if not messages or not all(isinstance(message.get("content"), str) for message in messages):
        raise SetBlockError("the messages have no user's message to answer, or hold something else than text")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


@dataclass(frozen=True)
class Regenerated:
    """Count the questions so far, and the answers to them that are in the file."""

    questions: int
    answers: int


def regenerate(
    model: SBDModel,
    questions: Iterable[Question],
    path: Path,
    *,
    settings: DecodingSettings,
    batch_size: int = 32,
    on_progress: Callable[[Regenerated], None] | None = None,
) -> Regenerated:
    """Write the model's answers to a file of JSON lines, as a recipe's `data.source` reads it.

    Continues behind the last answer of the file, if there is one. An answer that did not end before the limit is left out:
    a model that learned it would learn to end where it was cut. At a temperature above 0, an answer depends
    on `settings.seed` and its question's number alone.

    Raises:
        SetBlockError: the file holds answers to other questions, can't be written, or a question can't be answered.
    """
    questions = iter(questions)
    done = _resume(path, questions)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            while batch := list(islice(questions, batch_size)):
                for line in _answers(model, batch, first=done.questions, settings=settings):
                    file.write(line + "\n")
                    done = replace(done, answers=done.answers + 1)
                file.flush()
                done = replace(done, questions=done.questions + len(batch))
                if on_progress is not None:
                    on_progress(done)
    except OSError as error:
        raise SetBlockError(f"can't write {path}: {error.strerror}") from error
    return done


def _answers(model: SBDModel, batch: Sequence[Question], *, first: int, settings: DecodingSettings) -> Iterator[str]:
    each = [settings.of_sample(first + number) for number in range(len(batch))]
    # `raw` is about texts: a prompt is gone on with as it stands, messages are written by the chat template all the same.
    answers = generate_batch(model, [question.prompt for question in batch], settings=each, raw=True)
    for number, (question, answer) in enumerate(zip(batch, answers, strict=True)):
        if answer.finish_reason == "stop":
            yield json.dumps({"question": first + number, **question.answered(answer.text)}, ensure_ascii=False)


def _resume(path: Path, questions: Iterator[Question]) -> Regenerated:
    """Return what a file holds already; `questions` are moved behind those. A last line that was cut short is taken
    out."""
    lines = whole_lines(path)
    if not lines:
        return Regenerated(0, 0)
    try:
        last = json.loads(lines[-1])
        number = int(last["question"])
    except (ValueError, KeyError, TypeError) as error:
        raise SetBlockError(f"{path} was not written by this command: give another --output") from error
    question = next(islice(questions, number, None), None)
    if question is None or not question.asks(last):
        raise SetBlockError(f"{path} holds answers to other questions: delete it, or give another --output")
    return Regenerated(number + 1, len(lines))
