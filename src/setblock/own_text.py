"""Let a model write text to learn from: prompts, and answers to the prompts of a data set.

Knows records, decoding and files of results. Knows nothing of training. A model that learns to decode its own answers in
blocks need not learn to write others'; that is what fewer tokens can do (Fast-dLLM v2, arXiv 2509.26328, trains on the data of
its base model; TiDAR, arXiv 2511.08923, and speculative drafters on regenerated answers). A chat model was trained on users'
turns, too. So a user's turn is opened, and the model continues it: a wide mixture of prompts without any data set (Magpie,
arXiv 2406.08464).
"""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.data.section import DataSection
from setblock.data.texts.encoding import shaped, value_of
from setblock.data.texts.records import records_of
from setblock.decoding.answer.text import Prompt
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.offline import answered, limits_for
from setblock.engine.request import Request
from setblock.errors import SetBlockError
from setblock.files import whole_lines
from setblock.model.protocol.runtime import LanguageModel
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class Question:
    """Hold what is to be answered again: a text to continue, or the messages before the last answer."""

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
    Raise `SetBlockError` if the data can't be read, or has no answers to ask for."""
    for source in section.sources:
        shape, records = shaped(source, records_of(source))
        for record in records:
            try:
                yield Question(_prompt([value_of(record, column, shape) for column in shape.columns]))
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


def regenerate(
    model: SBDModel,
    questions: Iterable[Question],
    path: Path,
    *,
    settings: DecodingSettings,
    batch_size: int = 32,
    on_progress: Callable[[int], None] = lambda answers: None,
) -> tuple[int, int]:
    """Write the model's answers to a file of JSON lines, as a recipe's `data.source` reads it. Return how many questions there
    are, and how many answers to them the file has, which `on_progress` hears, too.

    Continues behind the last answer of the file, if there is one. An answer that did not end before the limit is left out:
    a model that learned it would learn to end where it was cut. At a temperature above 0, an answer depends
    on `settings.seed` and its question's number alone.

    Raises:
        SetBlockError: the file holds answers to other questions, can't be written, or a question can't be answered.
    """
    questions = iter(questions)
    with _continued(path, "question") as (written, first, write):
        if first:
            last = next(islice(questions, first - 1, None), None)
            if last is None or not last.asks(written[-1]):
                raise SetBlockError(f"{path} holds answers to other questions: delete it, or give another --output")
        asked, kept = first, len(written)
        while batch := list(islice(questions, batch_size)):
            each = [settings.of_sample(asked + number) for number in range(len(batch))]
            # `raw` is about texts: a prompt is gone on with as it stands, messages are written by the template all the same.
            answers = generate_batch(model, [question.prompt for question in batch], settings=each, raw=True)
            numbered = enumerate(zip(batch, answers, strict=True), start=asked)
            records = [
                {"question": number, **question.answered(answer.text)}
                for number, (question, answer) in numbered
                if answer.finish_reason == "stop"
            ]
            write(records)
            asked, kept = asked + len(batch), kept + len(records)
            on_progress(kept)
    return asked, kept


Record = dict[str, Any]


@contextmanager
def _continued(path: Path, key: str) -> Iterator[tuple[list[Record], int, Callable[[Iterable[Record]], None]]]:
    """Open a file of JSON lines, and yield its records, the number of what comes next, and what adds records to it. The number
    of a record is under `key`."""

    def write(records: Iterable[Record]) -> None:
        file.writelines(json.dumps(record, ensure_ascii=False) + "\n" for record in records)
        file.flush()

    try:
        written = [json.loads(line) for line in whole_lines(path)]
        first = int(written[-1][key]) + 1 if written else 0
    except (ValueError, KeyError, TypeError) as error:
        raise SetBlockError(f"{path} was not written by this command: give another --output") from error
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            yield written, first, write
    except OSError as error:
        raise SetBlockError(f"can't write {path}: {error.strerror}") from error


_HERE = "\ue000"  # represents what the user writes
_AT_ONCE = 32
_SHORTEST = 8
"""Characters: what is shorter asks for nothing."""


def opened_turn(tokenizer: PreTrainedTokenizerBase, *, system: str | None = None) -> list[int]:
    """Return the token ids of a chat up to where a user's first message begins; without a `system` message, the chat template's
    own comes before, if it has one. Raise `SetBlockError` if the tokenizer has no chat template, or the template does not write
    a user's message as it stands."""
    if tokenizer.chat_template is None:
        raise SetBlockError(
            "a model needs a chat template to write prompts, and this tokenizer has none: use an instruction-tuned model"
        )
    messages = [] if system is None else [{"role": "system", "content": system}]
    rendered = str(tokenizer.apply_chat_template([*messages, {"role": "user", "content": _HERE}], tokenize=False))
    before, found, _ = rendered.partition(_HERE)
    if not found or not before:
        raise SetBlockError(
            "the chat template writes nothing before a user's message that would open it: use another model"
        )
    return list(tokenizer(before, add_special_tokens=False).input_ids)


def write_prompts(
    model: LanguageModel,
    path: Path,
    *,
    count: int,
    systems: Sequence[str | None] = (None,),
    settings: DecodingSettings,
    on_progress: Callable[[int], None] = lambda asked: None,
) -> int:
    """Write prompts to a file of JSON lines, records of chats that hold a user's message alone, and return how many it has.

    The i-th prompt depends on `settings.seed` + i alone, so that a file that was cut short is gone on with. A prompt that does
    not end before the limit, is almost empty or was written before is left out.

    Args:
        count: how many the model is asked for; the file gets fewer.
        systems: system messages, taken in turn.
        settings: how they are drawn; a temperature of 0 would write the same prompt again and again.
        on_progress: is given how many were asked for so far.

    Raises:
        SetBlockError: as `opened_turn`, or the file is another command's or can't be written.
    """
    openings = [opened_turn(model.tokenizer, system=system) for system in systems]
    like = [Request("", opening, settings) for opening in openings for _ in range(_AT_ONCE)]
    limits = limits_for(model, like, concurrency=_AT_ONCE)
    with _continued(path, "number") as (written, first, write):
        seen = {str(record["messages"][0]["content"]) for record in written}
        for begin in range(first, count, 4 * _AT_ONCE):
            numbers = range(begin, min(count, begin + 4 * _AT_ONCE))
            requests = [Request(str(n), openings[n % len(openings)], settings.of_sample(n)) for n in numbers]
            answers = dict(answered(Engine(model, limits), requests))
            records = []
            for number in numbers:
                answer = answers[str(number)]
                text = answer.text.strip()
                if answer.finish_reason == "stop" and len(text) >= _SHORTEST and text not in seen:
                    seen.add(text)
                    records.append({"number": number, "messages": [{"role": "user", "content": text}]})
            write(records)
            on_progress(numbers.stop)
    return len(seen)
