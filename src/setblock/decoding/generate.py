"""Three layers: steps (`open_batch` + `decode`), a stream of text with its figures (`stream`), a string (`generate`)."""

import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from setblock.decoding.loop import DecodingStep, decode
from setblock.decoding.record import PassCounts, Record
from setblock.decoding.samplers import EntropyBounded, Sampler
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.state import BatchState, open_state
from setblock.decoding.text import Prompt, TextStream, decode_tokens, encode_prompt
from setblock.errors import SetBlockError, SetBlockWarning
from setblock.model.cache import SlotCache
from setblock.model.sbd_model import SBDModel

DEFAULT_MAX_NEW_TOKENS = 256
DEFAULT_BLOCK_SIZE = 16


class BlockSizeNotTrained(SetBlockWarning):
    """A block is larger than any that the model was trained with."""


@dataclass(frozen=True)
class Generation:
    """A finished answer.

    Attributes:
        text: the answer without its end-of-text, special tokens left out.
        token_ids: its tokens, the end-of-text included if there is one.
        finish_reason: `stop` at an end-of-text, `length` at the limit.
        passes: forward passes by kind.
        revealed_by: for each token, the number of the pass that revealed it; 0 is the prefill.
        entropy: for each token, its entropy in nats when it was revealed.
        seconds: wall-clock from the prompt to the end of the whole batch.
        method: `sbd` or `ntp`.
    """

    text: str
    token_ids: list[int]
    finish_reason: Literal["stop", "length"]
    passes: PassCounts
    revealed_by: list[int]
    entropy: list[float]
    seconds: float
    method: str

    @property
    def num_tokens(self) -> int:
        """Tokens generated, the end-of-text included."""
        return len(self.token_ids)

    @property
    def num_forwards(self) -> int:
        """Forward passes of the model, all of them."""
        return self.passes.total

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per forward pass, the prefill counted: exactly 1 for method `ntp`."""
        return self.num_tokens / self.num_forwards


@dataclass(frozen=True)
class StreamChunk:
    """What one forward pass added.

    Attributes:
        text: text that became final with this pass; may be empty.
        step: what the pass did (row 0 of its tensors).
        generation: the finished answer, on the last chunk only.
    """

    text: str
    step: DecodingStep
    generation: Generation | None = None


@dataclass
class OpenBatch:
    """A batch ready to decode: its state, its cache, and the record of what it did."""

    model: SBDModel
    settings: list[DecodingSettings]
    state: BatchState
    cache: SlotCache
    record: Record
    started: float

    def steps(self, sampler: Sampler) -> Iterator[DecodingStep]:
        """Decode to the end, a step for each forward pass."""
        for step in decode(self.model, self.state, self.cache, sampler=sampler):
            self.record.add(step)
            yield step

    def end_of_text(self) -> Tensor:
        """Ids that end an answer."""
        return torch.tensor(self.model.end_of_text_ids, dtype=torch.long, device=self.model.device)

    def generation(self, row: int) -> Generation:
        """The finished answer of a row."""
        token_ids = self.state.answer(row, self.end_of_text()).tolist()
        written = self.state.revealed_prefix(row, self.end_of_text()).tolist()
        start = int(self.state.prompt_length[row])
        return Generation(
            text=decode_tokens(self.model.tokenizer, written),
            token_ids=token_ids,
            finish_reason="stop" if bool(self.state.stopped[row]) else "length",
            passes=self.record.counts(row),
            revealed_by=self.record.revealed_by(row, start, len(token_ids)),
            entropy=self.record.entropy(row, start, len(token_ids)).tolist(),
            seconds=time.perf_counter() - self.started,
            method=self.settings[row].method,
        )


def open_batch(model: SBDModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]) -> OpenBatch:
    """Check requests against the model and lay out their batch. Rows may differ in everything.

    Raises:
        SetBlockError: a prompt is empty or too long, or a row asks for what the model can't do.
    """
    started = time.perf_counter()
    limits = [_limit(model, len(prompt), each) for prompt, each in zip(prompts, settings, strict=True)]
    sizes = [block_size_for(model, each) for each in settings]
    _warn_if_not_trained(model, max(sizes, default=1))
    state = open_state(
        [list(prompt) for prompt in prompts], list(settings), block_sizes=sizes, limits=limits, device=model.device
    )
    layers = model.model.config.get_text_config().num_hidden_layers
    cache = SlotCache(layers=layers, batch=len(prompts), capacity=max(limits))
    return OpenBatch(model, list(settings), state, cache, Record(state), started)


def _limit(model: SBDModel, prompt_length: int, settings: DecodingSettings) -> int:
    context, wanted = model.context_length, settings.max_new_tokens
    if prompt_length == 0:
        raise SetBlockError("prompt must not be empty")
    if context is None:
        return prompt_length + (wanted or DEFAULT_MAX_NEW_TOKENS)
    if prompt_length >= context:
        raise SetBlockError(f"prompt has {prompt_length} tokens; this model's context holds {context}, answer included")
    if wanted is None:
        return min(prompt_length + DEFAULT_MAX_NEW_TOKENS, context)
    if prompt_length + wanted > context:
        raise SetBlockError(
            f"max_new_tokens must be at most {context - prompt_length} after a prompt of {prompt_length} tokens "
            f"(the context holds {context}), not {wanted}"
        )
    return prompt_length + wanted


def block_size_for(model: SBDModel, settings: DecodingSettings) -> int:
    """The block size that a request gets: what it asks for, else the model's own. 1 in method `ntp`.

    Raises:
        SetBlockError: the model has no mask token, and the request asks for blocks.
    """
    if settings.method == "ntp":
        return 1
    if model.facts is None:
        raise SetBlockError(
            "this model has no mask token: decode it with method 'ntp', or fine-tune it with `setblock train`"
        )
    trained = model.facts.block_sizes
    return settings.block_size or min(DEFAULT_BLOCK_SIZE, max(trained, default=DEFAULT_BLOCK_SIZE))


def _warn_if_not_trained(model: SBDModel, block_size: int) -> None:
    trained = model.facts.block_sizes if model.facts else ()
    if trained and block_size > trained[-1]:
        warnings.warn(
            f"block_size {block_size} is larger than any this model was trained with (at most {trained[-1]}): "
            "expect worse text",
            BlockSizeNotTrained,
            stacklevel=3,
        )


def stream(
    model: SBDModel,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    sampler: Sampler | None = None,
    raw: bool = False,
) -> Iterator[StreamChunk]:
    """Generate an answer, yielding after each forward pass what it added to the text.

    Args:
        prompt: a text or chat messages; see `encode_prompt`.
        settings: how to decode; the defaults are `DecodingSettings`'s.
        sampler: what to reveal; `EntropyBounded()` by default.
        raw: don't apply the chat template.

    Raises:
        SetBlockError: the prompt or a setting is not valid for this model.
    """
    settings, sampler = settings or DecodingSettings(), sampler or EntropyBounded()
    batch = open_batch(model, [encode_prompt(model.tokenizer, prompt, raw=raw)], [settings])
    text, end_of_text = TextStream(model.tokenizer), batch.end_of_text()
    for step in batch.steps(sampler):
        finished = bool(step.finished[0])
        prefix = batch.state.revealed_prefix(0, end_of_text).tolist()
        generation = batch.generation(0) if finished else None
        yield StreamChunk(text.push(prefix, final=finished), step, generation)


def generate(
    model: SBDModel,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    sampler: Sampler | None = None,
    raw: bool = False,
) -> Generation:
    """Generate an answer. Arguments and errors as in `stream`."""
    return generate_batch(model, [prompt], settings=settings, sampler=sampler, raw=raw)[0]


def generate_batch(
    model: SBDModel,
    prompts: Sequence[Prompt],
    *,
    settings: DecodingSettings | Sequence[DecodingSettings] | None = None,
    sampler: Sampler | None = None,
    raw: bool = False,
) -> list[Generation]:
    """Generate an answer to each prompt in one batch; each is what it would be alone.

    Args:
        settings: for all prompts, or one for each. Other arguments and errors as in `stream`.
    """
    if not prompts:
        return []
    if settings is None or isinstance(settings, DecodingSettings):
        settings = [settings or DecodingSettings()] * len(prompts)
    encoded = [encode_prompt(model.tokenizer, prompt, raw=raw) for prompt in prompts]
    batch = open_batch(model, encoded, settings)
    for _ in batch.steps(sampler or EntropyBounded()):
        pass
    return [batch.generation(row) for row in range(len(prompts))]
