"""A model's own answers to the prompts of a data set, as training data.

A model that learns to decode its own answers in blocks need not learn to write others', so fewer tokens are enough (Fast-dLLM
v2, arXiv 2509.26328, trains on the data of its base model; TiDAR, arXiv 2511.08923, and speculative drafters on regenerated
answers).
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.chat.messages import Chat
from setblock.data.section import DataSection
from setblock.data.texts.records import records_of
from setblock.data.texts.shapes import shaped, values_of
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.answer.tool_calls import AnswerReader
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate_batch
from setblock.errors import SetBlockError, prefixed
from setblock.evaluation.sweeps.fingerprint import model_fingerprint
from setblock.json_lines import PartFile, read_json
from setblock.model.sbd_model import SBDModel
from setblock.structure.call_form import CallForm, call_form
from setblock.structure.call_grammar import Calls
from setblock.structure.call_reader import Piece
from setblock.structure.compiled import grammars_of


@dataclass(frozen=True)
class Question:
    """A prompt of the data: a text to continue, or messages, with the tools that the chat has, if any."""

    prompt: str | list[dict[str, Any]]
    tools: list[dict[str, Any]] | None = None
    where: str = field(default="a question", compare=False)  # names it to a user

    @property
    def record(self) -> dict[str, Any]:
        """Return the question's columns in the record of its answer."""
        if isinstance(self.prompt, str):
            return {"prompt": self.prompt}
        return {"messages": self.prompt, **({"tools": self.tools} if self.tools else {})}


def questions_of(section: DataSection) -> Iterator[Question]:
    """Yield the questions of a recipe's data: the prompt of each prompt and completion, or the messages before the
    last answer (all messages if there is none). What follows that answer is left out. Raise `SetBlockError` if the
    data can't be read, or has no prompts to answer."""
    for source in section.sources:
        shape, records = shaped(source, records_of(source))
        for record in records:
            with prefixed(record.where):
                yield _question(values_of(record, shape), record.where)


def _question(values: list[Any], where: str) -> Question:
    if len(values) == 2:
        return Question(str(values[0]), where=where)
    chat = values[0]
    if not isinstance(chat, Chat):
        raise SetBlockError("a text has no prompt to answer; prompts and completions, or messages, are needed")
    answers = [place for place, message in enumerate(chat.messages) if message["role"] == "assistant"]
    last = answers[-1] if answers else len(chat.messages)  # the last answer is written again; else the first is written
    if last == 0:
        raise SetBlockError("the messages have no user's message to answer")
    return Question(chat.messages[:last], chat.tools or None, where)


def answered(question: Question, text: str) -> dict[str, Any]:
    """Return the record of an answer without calls, in the question's form."""
    if isinstance(question.prompt, str):
        return {**question.record, "completion": text}
    return {**question.record, "messages": [*question.prompt, {"role": "assistant", "content": text}]}


def called(question: Question, pieces: Iterable[Piece]) -> dict[str, Any] | None:
    """Return the record of an answer whose calls are separate from its text. Return None if a call's arguments aren't JSON."""
    calls: list[dict[str, Any]] = []
    text = ""
    for piece in pieces:
        if piece.kind == "text":
            text += piece.text
        elif piece.kind == "name":
            calls.append({"type": "function", "function": {"name": piece.text, "arguments": ""}})
        else:
            calls[piece.call]["function"]["arguments"] += piece.text
    record = answered(question, text)
    try:
        for call in calls:
            call["function"]["arguments"] = read_json(call["function"]["arguments"])
    except ValueError:
        return None
    if calls:
        record["messages"][-1]["tool_calls"] = calls
    return record


def regenerate(
    model: SBDModel,
    questions: Iterable[Question],
    path: Path,
    *,
    settings: DecodingSettings,
    batch_size: int = 32,
    on_progress: Callable[[int], None] = lambda answers: None,
) -> tuple[int, int]:
    """Write the model's answers to a file of JSON lines, as a recipe's `data.source` reads it. Return the number of questions
    and the number of answers in the file; `on_progress` gets them, too. Raise `SetBlockError` if the file exists, can't be
    written, is being written, or a question can't be answered; or if an interrupted run's partial file is of another model,
    other settings or other questions.

    The file appears once all questions are answered; until then the answers are in `path` + `.part`, from which a later run
    continues. An answer that did not end before the limit is left out, since a model would learn to end where it was cut. So is
    an answer with a tool call whose arguments are not JSON. At a temperature above 0, an answer depends on `settings.seed` and
    the number of its question.
    """
    questions = iter(questions)
    tokenizer = model.tokenizer
    form_of_calls = cache(lambda: call_form(tokenizer, grammars_of(tokenizer).special, ends=model.end_of_text_ids))
    with PartFile(path) as file:
        made = {name: repr(value) for name, value in settings.changed().items()}
        earlier = file.begin({"model": model_fingerprint(model), "settings": made})
        requested, kept = len(earlier), sum(line["answer"] is not None for line in earlier)
        for line in earlier:
            question = next(questions, None)
            if question is None or question.record != line["question"]:
                raise SetBlockError(
                    f"{path}.part holds answers to other questions: delete it, or give another --output"
                )
        while batch := list(islice(questions, batch_size)):
            each = [settings.of_sample(requested + number) for number in range(len(batch))]
            prompts = [_encoded(tokenizer, question) for question in batch]
            for question, answer in zip(batch, generate_batch(model, prompts, settings=each), strict=True):
                record = None
                if answer.finish_reason == "stop":
                    if question.tools:
                        token_ids = [each for each in answer.token_ids if each not in model.end_of_text_ids]
                        reader = AnswerReader(_calls(form_of_calls(), question.tools), tokenizer)
                        record = called(question, reader.read(token_ids, finish_reason="stop"))
                    else:
                        record = answered(question, answer.text)
                file.add({"question": question.record, "answer": record})
                kept += record is not None
            requested += len(batch)
            on_progress(kept)
        file.finish(
            lambda lines: (
                {"question": number, **line["answer"]}
                for number, line in enumerate(lines)
                if line["answer"] is not None
            )
        )
    return requested, kept


def _calls(form: CallForm, tools: Iterable[dict[str, Any]]) -> Calls:
    functions = [tool["function"] for tool in tools]
    parameters = {each["name"]: each.get("parameters") or {"type": "object"} for each in functions}
    return Calls(form, parameters, required=False, parallel=True)


def _encoded(tokenizer: PreTrainedTokenizerBase, question: Question) -> list[int]:
    with prefixed(question.where):
        # `raw`: a text is continued as it is. Messages are rendered by the template all the same.
        return encode_prompt(tokenizer, question.prompt, raw=True, tools=question.tools)
