"""Traces: what each forward pass did to one answer, in plain numbers and texts."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from setblock.decoding.answer.generation import Reveal
from setblock.decoding.answer.prompt import Prompt, encode_prompt
from setblock.decoding.settings.resolve import requested_settings, with_calibration
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import loaded, stream
from setblock.evaluation.operating_point import point_of
from setblock.model.protocol.runtime import LanguageModel


@dataclass(frozen=True)
class TracedToken:
    """A token that a pass revealed."""

    index: int  # its place in the answer, from 0
    text: str  # what it adds to the text; a token that is part of a character may be a replacement character
    entropy: float  # in nats, of the distribution that it was chosen from
    is_end: bool  # whether it ends the answer


@dataclass(frozen=True)
class TracedPass:
    """One forward pass: over the prompt (`prefill`), over the open block (`block`), over the open block and the finished one,
    which it writes to the cache causally (`commit`), or, in method `ntp`, over one token (`token`)."""

    number: int  # 0 for the prefill, then 1, 2, ...
    kind: Literal["prefill", "token", "block", "commit"]
    start: int  # the first position of the open block; all earlier positions are in the cache after the pass
    size: int  # the number of the block's positions that are revealed or were computed, including gaps
    revealed: list[TracedToken]  # from left to right
    masked: list[tuple[int, float]]  # the place and entropy of each position that the pass computed and left masked
    corrected: TracedToken | None  # in method `exact`, the place where a draft was wrong, and its new token
    # Places of tokens that were revealed before the pass and are dropped now: right of the correction, or, in method `exact`,
    # behind the gap at which a draft ended
    dropped: list[int]


@dataclass(frozen=True)
class Trace:
    """One answer, pass by pass."""

    prompt: Prompt
    text: str
    tokens: list[str]  # the text of each token of the answer, including its end-of-text
    finish_reason: str  # as in `Generation`
    method: str
    block_size: int  # 1 in method `ntp`
    passes: list[TracedPass]


def trace(
    model: LanguageModel | str | Path,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    raw: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    **named: Any,
) -> Trace:
    """Answer a prompt and record each pass. Arguments and errors are those of `setblock.stream`."""
    model = loaded(model)
    tokenizer = model.tokenizer
    settings = with_calibration(model, requested_settings(named, base=settings))
    ends = {*model.end_of_text_ids, *settings.stop_token_ids}
    given: dict[str, Any] = {"raw": raw, "chat_template_kwargs": chat_template_kwargs}
    prompt_length = len(encode_prompt(tokenizer, prompt, **given))

    def text(token_id: int) -> str:
        return str(tokenizer.decode([token_id]))

    def token(found: Reveal) -> TracedToken:
        return TracedToken(found.index, text(found.token_id), found.entropy, found.token_id in ends)

    passes, generation = [], None
    standing: dict[int, TracedToken] = {}  # what the answer holds so far
    start = 0  # of the open block
    for chunk in stream(
        model, prompt, settings=settings, with_steps=True, **given
    ):  # not kept: each holds a pass's logits
        event, step = chunk.event, chunk.step
        assert step is not None
        places = (step.positions[0] - prompt_length).tolist()
        before, start = start, places[0]
        corrected = None if event.corrected is None else token(event.corrected)
        right = math.inf if corrected is None else corrected.index
        void = sorted(index for index in standing if index >= start > before or index > right)
        for index in void:
            del standing[index]
        revealed = [token(each) for each in event.revealed]
        standing |= {each.index: each for each in (corrected, *revealed) if each is not None}

        # What a pass computed behind a wrong draft was discarded. `known` may be shorter than the places: positions past its
        # end are not in the block
        known = step.given.block.known[0].tolist() if corrected is None else []
        end = min((index for index, each in standing.items() if each.is_end), default=places[-1] + 1)
        masked = [
            (place, entropy)
            for place, entropy, is_known in zip(places, step.entropy[0].tolist(), known, strict=False)
            if is_known and place not in standing and place < end
        ]
        in_block = [place for place in places if place in standing] + [place for place, _ in masked]
        traced = TracedPass(
            number=event.number,
            kind="token" if settings.method == "ntp" and event.kind == "block" else event.kind,
            start=start,
            size=max(in_block, default=start - 1) + 1 - start,
            revealed=revealed,
            masked=masked,
            corrected=corrected,
            dropped=void,
        )
        passes.append(traced)
        generation = chunk.generation
    assert generation is not None
    return Trace(
        prompt=prompt,
        text=generation.text,
        tokens=[text(token_id) for token_id in generation.token_ids],
        finish_reason=generation.finish_reason,
        method=settings.method,
        block_size=point_of(model, settings).block_size or 1,
        passes=passes,
    )
