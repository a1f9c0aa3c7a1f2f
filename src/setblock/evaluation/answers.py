"""Answer examples by a model, in batches or through the engine.

Knows how an example is asked and which are decoded together. Knows nothing of what is right.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from setblock.data.tasks import Example, Task
from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.text import Prompt, encode_prompt
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.offline.offline import answered, limits_for
from setblock.engine.request import Request
from setblock.model.protocol.language_model import LanguageModel

Progress = Callable[[int], None]


def answers_to(
    prompts: Sequence[Prompt],
    model: LanguageModel,
    settings: DecodingSettings,
    *,
    batch_size: int,
    raw: bool,
    continuous: bool = False,
    on_progress: Progress = lambda done: None,
) -> list[Generation]:
    """Return the model's answers, in the order of the prompts.

    Args:
        raw: whether prompts are gone on with as they stand, without a chat template.
        batch_size: how many are decoded at once.
        continuous: whether an answer that is finished makes room for the next (see `setblock.engine`), rather than wait for the
            longest of its batch. Neither changes an answer.
        on_progress: called periodically with the number of prompts answered so far.

    Raises:
        SetBlockError: the model can't do what is asked.
    """
    found: Iterator[Iterable[tuple[int, Generation]]]
    if continuous:
        requests = [
            Request(str(index), encode_prompt(model.tokenizer, prompt, raw=raw), replace(settings, n=1))
            for index, prompt in enumerate(prompts)
        ]
        engine = Engine(model, limits_for(model, requests, concurrency=batch_size))
        found = ([(int(request_id), answer)] for request_id, answer in answered(engine, requests))
    else:
        found = _answers_in_batches(prompts, model, settings, batch_size=batch_size, raw=raw)
    answers: dict[int, Generation] = {}
    for together in found:
        answers.update(together)
        on_progress(len(answers))
    return [answers[index] for index in range(len(prompts))]


def prompts_of(task: Task[Any], examples: Sequence[Example], model: LanguageModel) -> tuple[list[Prompt], bool]:
    """Return how a model is asked, and whether the prompt is continued directly, without a chat template."""
    raw = task.raw or model.tokenizer.chat_template is None
    return [example.asked(raw=raw) for example in examples], raw


def _answers_in_batches(
    prompts: Sequence[Prompt], model: LanguageModel, settings: DecodingSettings, *, batch_size: int, raw: bool
) -> Iterator[Iterable[tuple[int, Generation]]]:
    """Yield each batch's answers with the numbers of their prompts. Prompts of like length share a batch."""
    order = sorted(range(len(prompts)), key=lambda index: _length(prompts[index]))
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        answers = generate_batch(model, [prompts[index] for index in batch], settings=settings, raw=raw)
        yield zip(batch, answers, strict=True)


def _length(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(each["content"]) if isinstance(each, Mapping) else 1 for each in prompt)
