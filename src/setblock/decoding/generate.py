"""Generate at three levels: steps (`open_batch`), a stream of text with its figures (`stream`), a string (`generate`)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from setblock import devices
from setblock.decoding.answer.generation import Generation, PassEvent
from setblock.decoding.answer.text import Prompt, encode_prompt
from setblock.decoding.rows import Rows, open_rows
from setblock.decoding.settings.asked import settings_asked
from setblock.decoding.settings.checks import BlockSizeNotTrained
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step.absorb import DecodingStep
from setblock.decoding.step.feed import Span, in_parts, span_of, spans_ahead, standing
from setblock.devices import HostCopy
from setblock.errors import ParameterError, SetBlockError
from setblock.model.protocol.language_model import LanguageModel, Runner

__all__ = [
    "BlockSizeNotTrained",
    "Generation",
    "OpenBatch",
    "StreamChunk",
    "generate",
    "generate_batch",
    "open_batch",
    "stream",
]


@dataclass(frozen=True)
class StreamChunk:
    """Hold the result of one forward pass.

    Attributes:
        text: the text that became final in this pass; may be empty.
        event: the tokens that the pass revealed.
        step: the same as tensors of a batch of one, and the logits.
        generation: the finished answer, on the last chunk only.
    """

    text: str
    event: PassEvent
    step: DecodingStep = field(repr=False)
    generation: Generation | None = None

    def __str__(self) -> str:
        return self.text


@dataclass(kw_only=True)
class OpenBatch(Rows):
    """Hold a batch that is ready to decode: rows that stay together, and the runner of their passes."""

    runner: Runner

    def steps(self) -> Iterator[DecodingStep]:
        """Decode to the end (Algorithm 3), a step for each forward pass."""
        passes = 0
        while (spans := self._spans()) and any(span.tokens for span in spans):
            passes += not any(span.is_prefill for span in spans)
            assert passes <= self._most_passes, "an answer does not end"
            yield self.step(self.runner, spans)
        assert bool(self.state.answer.finished.all()), "decoding stops before an answer ends"

    @property
    def _most_passes(self) -> int:
        return max(each.most_passes for each in self.state.terms.rows)

    def _spans(self) -> list[Span]:
        return in_parts(self.spans(self.runner), self.state.terms.rows)

    def run(self) -> None:
        """Decode to the end, where nobody looks at the steps. What is decoded is the same.

        On a device that the host would have to wait for, it feeds each pass before it knows what the last one gave: the most
        that can be needed, and one pass too many after the last answer has ended.
        """
        if not self._can_run_ahead:
            for _ in self.steps():
                pass
            return
        spans = self._spans()
        self.step(self.runner, spans)
        while any(span.is_cut for span in spans):
            spans = self._spans()
            self.step(self.runner, spans)
        self.state.may_prefill, before, passes = False, self._where_rows_stand(), 0
        while (ahead := spans_ahead(spans, self.state.terms.rows)) and any(span.tokens for span in ahead):
            passes += 1
            assert passes <= 1 + self._most_passes, "an answer does not end"  # one is fed before the end is known
            self.step(self.runner, ahead, is_ahead=True)
            spans, before = [span_of(row) for row in before.read()], self._where_rows_stand()
        assert bool(self.state.answer.finished.all()), "decoding stops before an answer ends"

    @torch.inference_mode()
    def _where_rows_stand(self) -> HostCopy:
        return HostCopy(standing(self.state, fuses_commit=self.runner.fuses_commit))

    @property
    def _can_run_ahead(self) -> bool:
        """Return whether a pass may be fed before the last one is read: no companion listens, and full size costs no
        more."""
        tokens = sum(2 * each.block_size for each in self.state.terms.rows)
        return (
            devices.waits(self.state.tokens.device)
            and self.runner.fuses_commit
            and not self.policy.companions.listens
            and tokens <= _FREE_TOKENS
        )


_FREE_TOKENS = 256
"""Tokens that a pass computes on a GPU in the time in which it reads the weights anyway: about its operations a second over its
bytes a second, in half precision."""


def open_batch(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]
) -> OpenBatch:
    """Check requests against the model and lay out their batch. Rows may differ in everything; each is one answer. A row that
    says nothing of its sampler and its block gets what the model was calibrated to, if it was.

    Raises:
        SetBlockError: a prompt is empty or too long, or a row asks for what the model can't do.
    """
    rows = open_rows(model, prompts, settings)
    longest, count = max(terms.limit for terms in rows.state.terms.rows), len(prompts)
    runner = model.runner(rows=count, capacity=longest)
    if runner.fixed_keys is not None and (size := 1 << (count - 1).bit_length()) > count:
        rows = rows.filled_up(size)
        runner = model.runner(rows=size, capacity=longest)
    return OpenBatch(**vars(rows), runner=runner)


def stream(
    model: LanguageModel | str | Path,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    raw: bool = False,
    **named: Any,
) -> Iterator[StreamChunk]:
    """Generate an answer, and yield a chunk after each forward pass.

    Args:
        model: a model of `setblock.load`. A name, folder or hub id is loaded for this call only.
        prompt: a text or chat messages; see `encode_prompt`.
        settings: how to decode. The default is the model's calibrated setting, otherwise the defaults of `DecodingSettings`.
        raw: don't apply the chat template.
        named: single settings, in place of those in `settings`, such as `max_new_tokens=50`. `sampler` may be a name, and its
            parameters are settings, too.

    Raises:
        SetBlockError: the prompt or a setting is not valid for this model, or its logits are not numbers.
    """
    batch = _one(model, prompt, settings, raw=raw, named=named)
    for step in batch.steps():
        news = batch.news(step, batch.runner)
        text, event = batch.new_texts(news)[0], news[0].event
        assert event is not None
        generation = _whole(batch.generation(0)) if news[0].finished else None
        yield StreamChunk(text, event, step, generation)


def generate(
    model: LanguageModel | str | Path,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    raw: bool = False,
    **named: Any,
) -> Generation:
    """Generate an answer. Arguments and errors are those of `stream`."""
    batch = _one(model, prompt, settings, raw=raw, named=named)
    batch.run()
    return _whole(batch.generation(0))


def generate_batch(
    model: LanguageModel | str | Path,
    prompts: Sequence[Prompt],
    *,
    settings: DecodingSettings | Sequence[DecodingSettings] | None = None,
    raw: bool = False,
    **named: Any,
) -> list[Generation]:
    """Generate `n` answers to each prompt in one batch. Each answer is the same as if it were alone.

    Args:
        settings: the settings of all prompts, or a list with one item for each. Other arguments and errors are those of
            `stream`, with one difference: a request whose logits are not numbers ends with the reason `error`, and the
            others continue.

    Returns:
        The answers in the order of the prompts, `n` consecutive answers for each.
    """
    if isinstance(prompts, str):
        raise ParameterError("prompts must be a list of prompts, not a text: generate answers one prompt")
    if settings is None or isinstance(settings, DecodingSettings):
        settings = [settings or DecodingSettings()] * len(prompts)
    settings, model = [settings_asked(named, base=each) for each in settings], loaded(model)
    rows = [
        (encode_prompt(model.tokenizer, prompt, raw=raw), each.of_sample(sample))
        for prompt, each in zip(prompts, settings, strict=True)
        for sample in range(each.n)
    ]
    if not rows:
        return []
    batch = open_batch(model, [prompt for prompt, _ in rows], [each for _, each in rows])
    batch.run()
    return [batch.generation(row) for row in range(len(rows))]


def loaded(model: LanguageModel | str | Path) -> LanguageModel:
    """Return a model, loaded if it is a name, a folder or a hub id."""
    from setblock import load

    return load(model) if isinstance(model, (str, Path)) else model


def _one(
    model: LanguageModel | str | Path,
    prompt: Prompt,
    settings: DecodingSettings | None,
    *,
    raw: bool,
    named: Mapping[str, Any],
) -> OpenBatch:
    chosen = settings_asked(named, base=settings)
    if chosen.n != 1:
        raise ParameterError(f"n must be 1 for one answer, not {chosen.n}: generate_batch gives several")
    model = loaded(model)
    return open_batch(model, [encode_prompt(model.tokenizer, prompt, raw=raw)], [chosen])


def _whole(generation: Generation) -> Generation:
    if generation.error is not None:
        raise SetBlockError(generation.error.message)
    return generation
