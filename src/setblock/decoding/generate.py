"""Generation at three levels: steps (`static_batch`), a stream of text chunks (`stream`), an answer (`generate`)."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.prompt import Prompt, encode_prompt
from setblock.decoding.answer.row_output import RowOutput
from setblock.decoding.batch import Batch
from setblock.decoding.loop import StaticBatch
from setblock.decoding.settings.resolve import check_count, check_rows, requested_settings
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step.update import StepOutput
from setblock.errors import ParameterError, SetBlockError
from setblock.model.protocol.runtime import LanguageModel


@dataclass(frozen=True)
class StreamChunk:
    """The result of one forward pass.

    Attributes:
        text: the text that became final in this pass; may be empty.
        event: what the pass did, such as the tokens that it revealed.
        step: the same as tensors of a batch of one, with the logits, if `with_steps` was set; else None.
        generation: the finished answer, on the last chunk only.
    """

    text: str
    event: RowOutput
    step: StepOutput | None = field(default=None, repr=False)
    generation: Generation | None = None

    def __str__(self) -> str:
        return self.text


def static_batch(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]
) -> StaticBatch:
    """Check requests as `check_rows` does, and return their batch: a row for each answer. Rows may differ in settings."""
    rows = Batch.opened(check_rows(model, prompts, settings))
    longest, count = max(params.limit for params in rows.state.params.rows), len(prompts)
    runner = model.runner(rows=count, capacity=longest)
    if runner.fixed_keys is not None and (size := 1 << (count - 1).bit_length()) > count:
        rows = rows.padded_to(size)
        runner = model.runner(rows=size, capacity=longest)
    return StaticBatch(**vars(rows), runner=runner)


def stream(
    model: LanguageModel | str | Path,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    raw: bool = False,
    with_steps: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> Iterator[StreamChunk]:
    """Generate an answer, and yield a chunk after each forward pass.

    Args:
        model: a model of `setblock.load`. A name, folder or hub id is loaded for this call only.
        prompt: a text or chat messages; see `encode_prompt`.
        settings: how to decode. The default is the model's calibrated setting, otherwise the defaults of
            `DecodingSettings`.
        raw: don't apply the chat template.
        with_steps: put the pass's tensors into each chunk. They include the logits [1, m, V]: megabytes with a large
            vocabulary, for as long as the chunk is kept.
        chat_template_kwargs: further variables of the chat template, such as `{"enable_thinking": False}`.
        named: single settings, in place of those in `settings`, such as `max_new_tokens=50`. `sampler` may be a name,
            and its parameters are settings, too.

    Raises:
        SetBlockError: the prompt or a setting is not valid for this model, or its logits are not numbers.
    """
    requested = requested_settings(named, base=settings)
    batch = _opened(requested, model, prompt, raw=raw, chat_template_kwargs=chat_template_kwargs)
    for step in batch.steps():
        outputs = batch.outputs(step)
        text = batch.new_texts(outputs)[0]
        generation = _without_failure(batch.generation(0)) if outputs[0].finished else None
        yield StreamChunk(text, outputs[0], step if with_steps else None, generation)


def generate(
    model: LanguageModel | str | Path,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    raw: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> Generation:
    """Generate an answer. Arguments and errors are those of `stream`."""
    requested = requested_settings(named, base=settings)
    batch = _opened(requested, model, prompt, raw=raw, chat_template_kwargs=chat_template_kwargs)
    batch.run()
    return _without_failure(batch.generation(0))


def generate_batch(
    model: LanguageModel | str | Path,
    prompts: Sequence[Prompt],
    *,
    settings: DecodingSettings | Sequence[DecodingSettings] | None = None,
    raw: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> list[Generation]:
    """Generate `n` answers to each prompt in one batch. Each answer is the same as if it were alone.

    Args:
        settings: the settings of all prompts, or a list with one item for each. Other arguments and errors are those of
            `stream`. But a request whose logits are not numbers ends with the reason `error`, and the others continue.

    Returns:
        The answers in the order of the prompts, `n` consecutive answers for each.
    """
    if isinstance(prompts, str):
        raise ParameterError("prompts must be a list of prompts, not a text: generate answers one prompt")
    if not isinstance(prompts, Iterable) or isinstance(prompts, Mapping):
        raise ParameterError(f"prompts must be a list of prompts, not {prompts!r}")
    prompts = list(prompts)
    if settings is None or isinstance(settings, DecodingSettings):
        settings = [settings or DecodingSettings()] * len(prompts)
    settings = [requested_settings(named, base=each) for each in settings]
    check_count(prompts, settings)
    model = loaded(model)
    rows = [
        (
            encode_prompt(model.tokenizer, prompt, raw=raw, chat_template_kwargs=chat_template_kwargs),
            each.of_sample(sample),
        )
        for prompt, each in zip(prompts, settings, strict=True)
        for sample in range(each.n)
    ]
    if not rows:
        return []
    batch = static_batch(model, [prompt for prompt, _ in rows], [each for _, each in rows])
    batch.run()
    return [batch.generation(row) for row in range(len(rows))]


def loaded(model: LanguageModel | str | Path) -> LanguageModel:
    """Return a model, loaded if it is a name, a folder or a hub id."""
    from setblock import load

    return load(model) if isinstance(model, (str, Path)) else model


def _opened(
    settings: DecodingSettings,
    model: LanguageModel | str | Path,
    prompt: Prompt,
    *,
    raw: bool,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> StaticBatch:
    if settings.n != 1:
        raise ParameterError(f"n must be 1 for one answer, not {settings.n}: generate_batch gives several")
    model = loaded(model)
    token_ids = encode_prompt(model.tokenizer, prompt, raw=raw, chat_template_kwargs=chat_template_kwargs)
    return static_batch(model, [token_ids], [settings])


def _without_failure(generation: Generation) -> Generation:
    if generation.error is not None:
        raise SetBlockError(generation.error.message)
    return generation
