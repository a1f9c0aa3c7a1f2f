"""What all routes share: the configuration, the worker, the tokenizers and the metrics; and one request's answers."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

from setblock.decoding.answer.generation import Generation
from setblock.decoding.settings.table import SETTINGS, DecodingSettings
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Progress, QueueFull, Request
from setblock.errors import SetBlockError
from setblock.server.api.protocol import DecodingBody
from setblock.server.api.settings import request_error, settings_of
from setblock.server.http.access import LOOPBACK_NAMES, Admission, Keys
from setblock.server.http.errors import ApiError, bad_request, unavailable
from setblock.server.http.limits import ServerLimits
from setblock.server.http.logs import Account
from setblock.server.http.metrics import Metrics
from setblock.server.tokenizer_pool import TokenizerPool
from setblock.server.worker import EngineStopped, OutputQueue, Worker
from setblock.structure.call_grammar import Calls


@dataclass(frozen=True)
class ServerConfig:
    """The configuration of a server."""

    name: str  # the model's id for clients
    engine: EngineLimits = field(default_factory=EngineLimits)
    limits: ServerLimits = field(default_factory=ServerLimits)
    keys: Keys = field(default_factory=lambda: Keys(()))  # API keys; if empty, requests need no key
    hosts: Collection[str] = LOOPBACK_NAMES  # host names that requests may have; if empty, any
    origins: Collection[str] = ()  # origins of other sites whose pages may send requests, from `origins_of`
    default: DecodingSettings = field(default_factory=DecodingSettings)  # of requests that don't set them
    # Variables of chat templates that requests don't set
    chat_template_kwargs: Mapping[str, Any] = field(default_factory=dict)
    logs_text: bool = False  # whether prompts and answers go into the log
    example: str | None = None  # an example prompt for the playground
    notice: str | None = None  # a notice about the model in the playground


@dataclass(frozen=True)
class Serving:
    """A server's model, its worker, and what else its routes need."""

    config: ServerConfig
    card: dict[str, Any]  # the model's entry in /v1/models
    room: int  # the most tokens of a prompt and its answer together: the model's context or the cache
    worker: Worker
    tokenizers: TokenizerPool
    metrics: Metrics
    admission: Admission

    def check_model(self, name: str) -> None:
        """Raise `ApiError` if `name` is not the model's id."""
        if name != self.config.name:
            message = f"model must be {self.config.name!r}, the one that is served here, not {name!r}"
            raise ApiError(404, message, param="model", code="model_not_found")

    async def open(
        self, body: DecodingBody, prompts: list[list[int]], account: Account, *, calls: Calls | None = None
    ) -> "Reply":
        """Submit prompts to the engine, and return the reply. `calls`: the calls of tools that answers may make. Raise
        `ApiError` if a parameter is wrong, the queue is full, or the engine has stopped."""
        n = self.config.default.n if body.n is None else body.n
        most = int(min(self.config.limits.max_answers // len(prompts), SETTINGS["n"].range.high))
        if not 1 <= n <= most:
            of = f" with {len(prompts)} prompts" if len(prompts) > 1 else ""
            raise bad_request(f"n must be between 1 and {most}{of}, not {n}", param="n")
        try:
            grammar = None if calls is None else calls.grammar()
        except SetBlockError as error:  # too large
            raise bad_request(f"tools: {error}", param="tools") from error
        settings = settings_of(body, default=self.config.default, grammar=grammar)
        if settings.structure is not None:
            of_body = "structured_outputs" if body.structured_outputs else "response_format"
            # Keeps the compiled form until the engine has copies of its own
            _compiled = await self.tokenizers.prepare(settings.structure, param=of_body if grammar is None else "tools")
        try:
            requests = []
            for place, (prompt, sample) in enumerate(product(prompts, range(settings.n))):
                limit = settings.max_new_tokens or max(1, self.room - len(prompt))
                limited = replace(settings, max_new_tokens=limit)
                requests.append(Request(f"{account.id}-{place}", prompt, limited.of_sample(sample)))
            made = await self.worker.submit(requests)
        except QueueFull as error:
            raise ApiError(429, str(error)) from error
        except SetBlockError as error:
            raise request_error(error, body) from error
        except EngineStopped as error:
            raise self.why_stopped() from error
        prompt_tokens = sum(map(len, prompts))
        self.metrics.prompt_tokens.inc(prompt_tokens)
        places = {each.id: place for place, each in enumerate(requests)}
        return Reply(self, made, places, settings, account, prompt_tokens, [None] * len(requests))

    def why_stopped(self) -> ApiError:
        """Return the error of requests whose answers will not come."""
        if self.worker.failure is not None:
            return ApiError(500, "the engine has failed", code="engine_failed")
        return unavailable()


@dataclass(eq=False)
class Reply:
    """The answers to one HTTP request as they come. Their times and counts go to the metrics and the log."""

    serving: Serving
    made: OutputQueue
    places: dict[str, int]  # the index of each answer, by the id of its request to the engine
    settings: DecodingSettings
    account: Account
    prompt_tokens: int
    generations: list[Generation | None]  # None while an answer is not finished
    _last_text: dict[int, float] = field(default_factory=dict, init=False)  # the time of each answer's last text
    _tokens: Counter[int] = field(default_factory=Counter, init=False)  # of each answer so far
    _passes: Counter[int] = field(default_factory=Counter, init=False)  # of each answer so far

    async def progress(self) -> AsyncIterator[tuple[int, Progress]]:
        """Yield the index of an answer and the result of a pass for it, until all answers are finished. Raise `ApiError` if the
        model fails, the engine stops, or the answers take too long."""
        seconds = self.serving.config.limits.request_seconds
        deadline = asyncio.get_running_loop().time() + seconds
        while None in self.generations:
            try:
                async with asyncio.timeout_at(deadline):
                    made = await self.made.get()
            except TimeoutError as error:
                raise ApiError(504, f"the answer took more than {seconds:g} seconds") from error
            if isinstance(made, EngineStopped):
                raise self.serving.why_stopped() from made
            place = self.places[made.id]
            self._watch(place, made)
            if made.generation is not None and (failure := made.generation.error) is not None:
                if failure.is_of_form:
                    raise bad_request(failure.message, code="no_token_allowed")
                raise ApiError(500, failure.message, code="model_failed")
            yield place, made

    @property
    def done(self) -> list[Generation]:
        """Return the finished answers."""
        return [each for each in self.generations if each is not None]

    @property
    def usage(self) -> dict[str, Any]:
        """Return the tokens and passes of all finished answers."""
        done, kinds = self.done, ("prefill", "block", "commit")
        tokens = sum(each.num_tokens for each in done)
        forwards = sum(each.num_forwards for each in done)
        counted = sum(each.passes.with_one_prefill for each in done)
        return {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": tokens,
            "total_tokens": self.prompt_tokens + tokens,
            "num_forwards": forwards,
            "passes": {kind: sum(getattr(each.passes, kind) for each in done) for kind in kinds},
            "tokens_per_forward": tokens / counted if counted else None,
            "num_drafted_tokens": sum(each.drafted for each in done),
            "num_accepted_tokens": sum(each.accepted for each in done),
        }

    def close(self) -> None:
        """Abort unfinished answers, and add the request's figures to its log line."""
        self.serving.worker.abort(self.places)
        usage = self.usage
        unfinished = [place for place, each in enumerate(self.generations) if each is None]
        self.account.fields |= {
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": usage["completion_tokens"] + sum(self._tokens[place] for place in unfinished),
            "num_forwards": usage["num_forwards"] + sum(self._passes[place] for place in unfinished),
            "finish_reasons": ["cancelled" if each is None else each.finish_reason for each in self.generations],
            "decoding": self.settings.method,
        }
        if self.serving.config.logs_text:
            self.account.fields["answers"] = [each.text for each in self.done]

    def _watch(self, place: int, made: Progress) -> None:
        metrics, now = self.serving.metrics, time.perf_counter()
        if (event := made.event) is not None:
            self._tokens[place] += event.answer_end - event.tokens_start
            self._passes[place] += 1
            if event.revealed:
                metrics.revealed.observe(len(event.revealed))
        if made.text:
            if place in self._last_text:
                metrics.gap_seconds.observe(now - self._last_text[place])
            else:
                metrics.first_text_seconds.observe(self.account.seconds)
            self._last_text[place] = now
        if made.generation is not None:
            self.generations[place] = made.generation
            metrics.finished(made.generation)
