"""Answer many requests that are all there beforehand, with a full engine; those of a file of prompts into a file of answers."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from setblock.decoding.answer.generation import Generation, generation_json
from setblock.decoding.answer.text import encode_prompt
from setblock.decoding.settings.resolve import limit_of
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.files import AnswerFile, AnswerPipe, Key, PromptLine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.errors import prefixed
from setblock.model.protocol.runtime import LanguageModel

MOST_CACHED = 65536
"""Positions of the cache, where as many of the longest requests as are decoded at once would take more."""


def limits_for(model: LanguageModel, requests: Iterable[Request], *, concurrency: int) -> EngineLimits:
    """Return the limits of an engine that is to answer `requests`, at most `concurrency` at once: a cache for as many of the
    longest, if that is not too much, and always for one. Raise `SetBlockError` if one does not fit the model's context."""
    page = EngineLimits.page_tokens
    longest = sorted((limit_of(model, len(each.prompt), each.settings) + page for each in requests), reverse=True)
    needed = sum(longest[:concurrency])
    return EngineLimits(max_num_seqs=concurrency, kv_tokens=max([page, *longest[:1], min(needed, MOST_CACHED)]))


def answered(engine: Engine, requests: Iterable[Request]) -> Iterator[tuple[str, Generation]]:
    """Yield each request's id and answer, as soon as it is finished, or raise `SetBlockError` if the engine refuses one.
    `requests` may be lazy: few more are taken than run."""
    remaining, limits = iter(requests), engine.limits
    while True:
        # As many as may run, and one that waits for the first place that becomes free
        while (
            (figures := engine.figures).waiting < limits.max_waiting
            and figures.running + figures.waiting <= limits.max_num_seqs
            and (request := next(remaining, None)) is not None
        ):
            engine.submit(request)
        if engine.is_idle:
            return
        for progress in engine.step():
            if progress.generation is not None:
                yield progress.id, progress.generation


@dataclass(frozen=True)
class FileFigures:
    """The figures of a run."""

    answers: int  # how many the file holds
    failed: int  # how many that were made now ended with the reason `error`
    num_tokens: int  # of the answers that were made now
    num_forwards: int  # of these, too, as the following two
    num_drafted_tokens: int
    num_accepted_tokens: int  # the drafted ones that were right
    seconds: float  # from the first request to the last answer


def answer_prompts(
    model: LanguageModel,
    lines: Sequence[PromptLine],
    settings: DecodingSettings,
    answers: AnswerFile | AnswerPipe,
    *,
    concurrency: int,
    raw: bool,
    chat_template_kwargs: Mapping[str, Any] | None = None,
    on_progress: Callable[[int, int], None],
) -> FileFigures:
    """Write the answers that are not there yet, `settings.n` for each line, of which `concurrency` are decoded at once.
    `on_progress` hears the number of answers that are there, and of all. Raise `SetBlockError` if a prompt is too long; nothing
    has been answered then."""
    requested = _requested(model, lines, settings, raw=raw, chat_template_kwargs=chat_template_kwargs)
    wanted = [request for request, key, _ in requested.values() if key not in answers.done]
    engine = Engine(model, limits_for(model, wanted, concurrency=concurrency))
    counts = dict.fromkeys(("failed", *_COUNTED), 0)
    started = time.perf_counter()
    on_progress(len(answers.done), len(requested))
    for request_id, generation in answered(engine, wanted):
        _, key, line = requested[request_id]
        named = {} if line.id is None else {"id": line.id}
        found = generation_json(generation, model.tokenizer)
        answers.add(key, {**named, **found})
        counts["failed"] += generation.finish_reason == "error"
        for name in _COUNTED:
            counts[name] += found[name]
        on_progress(len(answers.done), len(requested))
    return FileFigures(answers=len(requested), seconds=time.perf_counter() - started, **counts)


_COUNTED = ("num_tokens", "num_forwards", "num_drafted_tokens", "num_accepted_tokens")


def _requested(
    model: LanguageModel,
    lines: Sequence[PromptLine],
    settings: DecodingSettings,
    *,
    raw: bool,
    chat_template_kwargs: Mapping[str, Any] | None,
) -> dict[str, tuple[Request, Key, PromptLine]]:
    """Return all that is asked for, by the requests' ids, checked before anything is answered."""
    requested = {}
    for line in lines:
        with prefixed(line.where):
            token_ids = encode_prompt(model.tokenizer, line.prompt, raw=raw, chat_template_kwargs=chat_template_kwargs)
            limit_of(model, len(token_ids), settings)
        for sample in range(settings.n):
            name = f"{line.number}.{sample}"
            requested[name] = Request(name, token_ids, settings.of_sample(sample)), (line.number, sample), line
    return requested
