"""Offline inference: answer requests that are all known beforehand, such as those of a file of prompts."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from setblock.decoding.answer.generation import Generation, generation_json
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.settings.resolve import limit_of
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.files import AnswerFile, AnswerPipe, Key, PromptLine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.errors import prefixed
from setblock.model.protocol.runtime import LanguageModel

MOST_CACHED = 65536
"""The most positions of the cache, unless one request alone needs more."""


def limits_for(model: LanguageModel, requests: Iterable[Request], *, concurrency: int) -> EngineLimits:
    """Return the limits of an engine that answers `requests`, at most `concurrency` at once. Its cache has room for the
    `concurrency` longest requests, at most `MOST_CACHED` positions, but never less than the longest request needs. Raise
    `SetBlockError` if a request does not fit the model's context."""
    page = EngineLimits.page_tokens
    limits = sorted((limit_of(model, len(each.prompt), each.settings) for each in requests), reverse=True)
    longest = max(limits, default=1)
    needed = concurrency * longest if model.needs_whole_rows else sum(limits[:concurrency]) + concurrency * page
    return EngineLimits(
        max_num_seqs=concurrency, max_model_len=longest, kv_tokens=max(longest + page, min(needed, MOST_CACHED))
    )


def answered(engine: Engine, requests: Iterable[Request]) -> Iterator[tuple[str, Generation]]:
    """Yield each request's id and answer as soon as it is finished. Raise `SetBlockError` if the engine refuses a request.
    `requests` may be lazy: at most one is taken beyond those that run."""
    remaining, limits = iter(requests), engine.limits
    while True:
        # As many as may run, and one that waits for the first row that becomes free
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
    """The figures of a run. All but `answers` leave out the answers of earlier runs."""

    answers: int  # answers in the file
    failed: int  # answers that ended with the reason `error`
    num_tokens: int
    num_forwards: int
    num_drafted_tokens: int
    num_accepted_tokens: int  # drafted tokens that were right
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
    """Write the answers that `answers` does not have yet: `settings.n` for each line, `concurrency` decoded at once.
    `on_progress` is called with the number of answers done and of all. Raise `SetBlockError`, before anything is answered, if a
    prompt is too long."""
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
    """Return each request with its key and its line, by the request's id. All are checked here."""
    requested = {}
    for line in lines:
        with prefixed(line.where):
            token_ids = encode_prompt(model.tokenizer, line.prompt, raw=raw, chat_template_kwargs=chat_template_kwargs)
            limit_of(model, len(token_ids), settings)
        for sample in range(settings.n):
            name = f"{line.number}.{sample}"
            request = Request(name, token_ids, settings.of_sample(sample), streams=False)
            requested[name] = request, (line.number, sample), line
    return requested
