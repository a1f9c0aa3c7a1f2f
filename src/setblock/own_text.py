"""Let a model answer the prompts of a data set, to learn from its own answers.

Knows records, decoding and files of results. Knows nothing of training. A model that learns to decode its own answers in
blocks need not learn to write others'; that is what fewer tokens can do (Fast-dLLM v2, arXiv 2509.26328, trains on the data of
its base model; TiDAR, arXiv 2511.08923, and speculative drafters on regenerated answers).
"""

import json
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from setblock.chat.messages import Chat
from setblock.data.section import DataSection
from setblock.data.texts.records import records_of
from setblock.data.texts.shapes import shaped, values_of
from setblock.decoding.answer.text import Prompt
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError, prefixed
from setblock.files import whole_lines, writing
from setblock.model.sbd_model import SBDModel


def questions_of(section: DataSection) -> Iterator[Prompt]:
    """Yield the questions of a recipe's data: texts to continue, or the messages before the last answer (all
    where there is none). Raise `SetBlockError` if the data can't be read, or has no answers to ask for."""
    for source in section.sources:
        shape, records = shaped(source, records_of(source))
        for record in records:
            with prefixed(record.where):
                yield _prompt(values_of(record, shape))


def _prompt(values: list[Any]) -> Prompt:
    if len(values) == 2:
        return str(values[0])
    if isinstance(values[0], str):
        raise SetBlockError("a text has no prompt to answer; prompts and completions, or messages, are needed")
    assert isinstance(values[0], Chat)
    messages = values[0].messages
    answers = [place for place, message in enumerate(messages) if message.get("role") == "assistant"]
    if answers:  # the last one is written again; else the first is written
        messages = messages[: answers[-1]]
    if not messages:
        raise SetBlockError("the messages have no user's message to answer")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def answered(question: Prompt, text: str) -> dict[str, Any]:
    """Return the record of an answer, in the shape that it was asked in."""
    if isinstance(question, str):
        return {"prompt": question, "completion": text}
    return {"messages": [*question, {"role": "assistant", "content": text}]}


def regenerate(
    model: SBDModel,
    questions: Iterable[Prompt],
    path: Path,
    *,
    settings: DecodingSettings,
    batch_size: int = 32,
    on_progress: Callable[[int], None] = lambda answers: None,
) -> tuple[int, int]:
    """Write the model's answers to a file of JSON lines, as a recipe's `data.source` reads it. Return how many questions there
    are, and how many answers to them the file has, which `on_progress` hears, too. Raise `SetBlockError` if the file holds
    answers to other questions, can't be written, or a question can't be answered.

    Continues behind the last answer of the file. An answer that did not end before the limit is left out: a model would learn
    to end where it was cut. At a temperature above 0, an answer depends on `settings.seed` and its question's number alone.
    """
    questions = iter(questions)
    with writing(path):  # a last line that was cut short is taken out
        lines = whole_lines(path)
    try:
        written = [json.loads(line) for line in lines]
        asked, kept = int(written[-1]["question"]) + 1 if written else 0, len(written)
    except (ValueError, KeyError, TypeError) as error:
        raise SetBlockError(f"{path} was not written by this command: give another --output") from error
    if asked:
        last = next(islice(questions, asked - 1, None), None)
        if last is None or last != written[-1].get("prompt", written[-1].get("messages", [])[:-1]):
            raise SetBlockError(f"{path} holds answers to other questions: delete it, or give another --output")
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8") as file:
            while batch := list(islice(questions, batch_size)):
                each = [settings.of_sample(asked + number) for number in range(len(batch))]
                # `raw`: a text is gone on with as it stands. Messages are written by the template all the same.
                answers = generate_batch(model, batch, settings=each, raw=True)
                for number, (question, answer) in enumerate(zip(batch, answers, strict=True), start=asked):
                    if answer.finish_reason == "stop":
                        record = {"question": number, **answered(question, answer.text)}
                        file.write(json.dumps(record, ensure_ascii=False) + "\n")
                        kept += 1
                file.flush()
                asked += len(batch)
                on_progress(kept)
    return asked, kept
