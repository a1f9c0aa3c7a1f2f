"""A model's answers to examples, in batches or through the engine.

Knows how examples become prompts and which are decoded together. Knows nothing of what is right.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from setblock.decoding.generate import generate_batch
from setblock.decoding.generation import Generation
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.text import encode_prompt
from setblock.engine.engine import Engine
from setblock.engine.offline import answered, limits_for
from setblock.engine.request import Request
from setblock.evaluation.tasks import Example
from setblock.model.sbd_model import SBDModel

Progress = Callable[[int], None]


def answers_to(
    examples: Sequence[Example],
    model: SBDModel,
    settings: DecodingSettings,
    *,
    batch_size: int,
    continuous: bool = False,
    on_progress: Progress = lambda done: None,
) -> list[Generation]:
    """The model's answers, in the order of the examples.

    Args:
        batch_size: how many are decoded at once.
        continuous: whether an answer that is finished makes room for the next (see `setblock.engine`), rather than wait for the
            longest of its batch. Neither changes an answer.
        on_progress: called now and then with the number of examples answered so far.

    Raises:
        SetBlockError: the model can't do what is asked.
    """
    answer = _answer_continuously if continuous else _answer_in_batches
    found = answer(examples, model, settings, batch_size, on_progress)
    return [found[index] for index in range(len(examples))]


def prompts_of(examples: Sequence[Example], model: SBDModel) -> tuple[list[str], bool]:
    """The examples' texts, and whether they are to be continued as they stand, without a chat template."""
    raw = model.tokenizer.chat_template is None
    return [example.prompt if raw else example.question for example in examples], raw


def _answer_in_batches(
    examples: Sequence[Example], model: SBDModel, settings: DecodingSettings, batch_size: int, on_progress: Progress
) -> dict[int, Generation]:
    """Examples of like length share a batch."""
    texts, raw = prompts_of(examples, model)
    order = sorted(range(len(texts)), key=lambda index: len(texts[index]))
    answers: dict[int, Generation] = {}
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        together = generate_batch(model, [texts[index] for index in batch], settings=settings, raw=raw)
        answers.update(zip(batch, together, strict=True))
        on_progress(len(answers))
    return answers


def _answer_continuously(
    examples: Sequence[Example], model: SBDModel, settings: DecodingSettings, batch_size: int, on_progress: Progress
) -> dict[int, Generation]:
    texts, raw = prompts_of(examples, model)
    settings = replace(settings, n=1)
    requests = [
        Request(str(index), encode_prompt(model.tokenizer, text, raw=raw), settings) for index, text in enumerate(texts)
    ]
    answers: dict[int, Generation] = {}
    for request_id, generation in answered(
        Engine(model, limits_for(model, requests, concurrency=batch_size)), requests
    ):
        answers[int(request_id)] = generation
        on_progress(len(answers))
    return answers
