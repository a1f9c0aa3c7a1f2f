"""Answer many requests that are all there beforehand, with a full engine."""

from collections.abc import Iterable, Iterator

from setblock.decoding.answer.generation import Generation
from setblock.decoding.settings.checks import limit_of
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.model.protocol.language_model import LanguageModel

MOST_CACHED = 65536
"""Positions of the cache, where as many of the longest requests as are decoded at once would take more."""


def limits_for(model: LanguageModel, requests: Iterable[Request], *, concurrency: int) -> EngineLimits:
    """Return the limits of an engine that is to answer `requests`, at most `concurrency` of them at once: a cache for
    as many of the longest, if that is not too much, and always for one.

    Raises:
        SetBlockError: a request does not fit the model's context.
    """
    page = EngineLimits.page_tokens
    longest = sorted((limit_of(model, len(each.prompt), each.settings) + page for each in requests), reverse=True)
    needed = sum(longest[:concurrency])
    return EngineLimits(max_num_seqs=concurrency, kv_tokens=max([page, *longest[:1], min(needed, MOST_CACHED)]))


def answered(engine: Engine, requests: Iterable[Request]) -> Iterator[tuple[str, Generation]]:
    """Yield each request's id and answer, as soon as it is finished. `requests` may be lazy: few more are taken than
    run.

    Raises:
        SetBlockError: the engine refuses a request.
    """
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
