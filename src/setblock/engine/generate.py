"""Generation at two levels: a stream of text chunks (`stream`), and answers (`generate`, `generate_batch`). All
requests of a call start at once, in an engine of their own."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.prompt import Prompt, encode_prompt
from setblock.decoding.answer.row_output import RowOutput
from setblock.decoding.settings.resolve import check_count, limit_of, requested_settings
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step.update import StepOutput
from setblock.engine.engine import Engine
from setblock.engine.kept import keep_engine, take_engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Progress, Request
from setblock.errors import ParameterError, SetBlockError
from setblock.model.protocol.runtime import PROMPT_PART, LanguageModel, fixed_capacity, next_power_of_two


@dataclass(frozen=True)
class StreamChunk:
    """The result of one forward pass.

    Attributes:
        text: the text that became final in this pass; may be empty.
        event: what the pass did, such as the tokens that it revealed.
        step: the same as tensors of a batch of one, with the logits, if `with_steps` was set; else None. Also None for a pass
            that is compiled or captured.
        generation: the finished answer, on the last chunk only.
    """

    text: str
    event: RowOutput
    step: StepOutput | None = field(default=None, repr=False)
    generation: Generation | None = None

    def __str__(self) -> str:
        return self.text


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
    """Generate an answer, and yield a chunk after each forward pass. A prompt that takes several passes gives one chunk.

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
    steps: list[StepOutput] = []
    passes = _passes(
        requested, model, prompt, raw, chat_template_kwargs, streams=True, steps=steps if with_steps else None
    )
    for progress in passes:
        assert progress.event is not None
        yield StreamChunk(
            progress.text, progress.event, steps[-1] if steps else None, _without_failure(progress.generation)
        )
        steps.clear()


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
    *_, last = _passes(requested, model, prompt, raw, chat_template_kwargs)
    generation = _without_failure(last.generation)
    assert generation is not None
    return generation


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
    finished: dict[int, Generation] = {}
    for passes in together(model, rows):
        finished |= {int(each.id): each.generation for each in passes if each.generation is not None}
    return [finished[row] for row in range(len(rows))]


def together(
    model: LanguageModel,
    rows: Sequence[tuple[Sequence[int], DecodingSettings]],
    *,
    streams: bool = False,
    steps: list[StepOutput] | None = None,
) -> Iterator[list[Progress]]:
    """Decode requests, prompts of token ids with their settings, that all start at once. Yield the results of each pass; the id
    of a request is its number. Raise `SetBlockError`, before the first pass, if a request can't be answered.

    Args:
        streams: as in `Request`, of all requests.
        steps: each pass's tensors are appended to it.
    """
    count, longest = len(rows), max(limit_of(model, len(prompt), settings) for prompt, settings in rows)
    is_static = model.static_kind is not None  # compiled code depends on the size of the cache: few sizes
    limits = EngineLimits(
        max_num_seqs=count,
        max_waiting=count,
        max_model_len=longest,
        kv_tokens=next_power_of_two(count) * fixed_capacity(longest) if is_static else count * longest,
        max_num_batched_tokens=sum(
            max(PROMPT_PART, each.prefill_chunk or 0, 2 * (each.block_size or 0)) for _, each in rows
        ),
    )
    is_kept = is_static and steps is None
    if is_kept:
        engine = take_engine(model, limits)
    else:
        engine = Engine(model, limits, whole_rows=not is_static, on_step=None if steps is None else steps.append)
    for number, (prompt, settings) in enumerate(rows):
        engine.submit(Request(str(number), prompt, settings, streams))
    while not engine.is_idle:
        passes = engine.step()
        if engine.is_idle and is_kept:  # an engine that is left before, or by an exception, is not used again
            keep_engine(model, engine)
        yield passes


def loaded(model: LanguageModel | str | Path) -> LanguageModel:
    """Return a model, loaded if it is a name, a folder or a hub id."""
    from setblock import load

    return load(model) if isinstance(model, (str, Path)) else model


def _passes(
    settings: DecodingSettings,
    model: LanguageModel | str | Path,
    prompt: Prompt,
    raw: bool,
    chat_template_kwargs: Mapping[str, Any] | None,
    *,
    streams: bool = False,
    steps: list[StepOutput] | None = None,
) -> Iterator[Progress]:
    """Yield the result of each pass of one answer, but for those that feed only a part of the prompt."""
    if settings.n != 1:
        raise ParameterError(f"n must be 1 for one answer, not {settings.n}: generate_batch gives several")
    model = loaded(model)
    token_ids = encode_prompt(model.tokenizer, prompt, raw=raw, chat_template_kwargs=chat_template_kwargs)
    for passes in together(model, [(token_ids, settings)], streams=streams, steps=steps):
        yield from (each for each in passes if each.event is not None)


def _without_failure(generation: Generation | None) -> Generation | None:
    if generation is not None and generation.error is not None:
        raise SetBlockError(generation.error.message)
    return generation
