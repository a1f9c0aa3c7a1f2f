"""Metrics for Prometheus. Labels take few values, whatever clients send."""

from collections.abc import Callable, Iterator
from functools import partial

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from setblock.decoding.answer.generation import Generation
from setblock.engine.limits import EngineFigures

_SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
_GAPS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0)
_TOKENS = (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0, 24.0, 32.0)


class Metrics(Collector):
    """The server's metrics. `figures` returns the engine's."""

    def __init__(self, figures: Callable[[], EngineFigures]) -> None:
        self.registry = CollectorRegistry()
        self._figures = figures
        self.registry.register(self)
        counter = partial(Counter, namespace="setblock", registry=self.registry)
        seconds = partial(Histogram, namespace="setblock", registry=self.registry, buckets=_SECONDS)
        tokens = partial(Histogram, namespace="setblock", registry=self.registry, buckets=_TOKENS)
        self.requests = counter("http_requests", "HTTP requests, by route and status.", ["route", "status"])
        self.request_seconds = seconds("request_seconds", "From a request to the end of its answer.", ["route"])
        self.first_text_seconds = seconds(
            "time_to_first_token_seconds", "From a request to the first text of each of its answers."
        )
        self.gap_seconds = seconds(
            "inter_token_latency_seconds", "From one piece of an answer's text to the next.", buckets=_GAPS
        )
        self.revealed = tokens(
            "revealed_tokens_per_pass", "Tokens that a pass revealed in an answer, those past its end included."
        )
        self.tokens_per_forward = tokens(
            "tokens_per_forward", "Tokens of an answer over its forward passes.", ["method"]
        )
        self.answers = counter("answers", "Finished answers.", ["method", "finish_reason"])
        self.prompt_tokens = counter("prompt_tokens", "Tokens of prompts.")
        self.generated_tokens = counter("generated_tokens", "Tokens of finished answers.")
        self.forwards = counter("answer_forwards", "Forward passes of finished answers.")

    def finished(self, generation: Generation) -> None:
        """Count a finished answer."""
        self.answers.labels(generation.method, generation.finish_reason).inc()
        self.generated_tokens.inc(generation.num_tokens)
        self.forwards.inc(generation.num_forwards)
        if generation.num_forwards:
            self.tokens_per_forward.labels(generation.method).observe(generation.tokens_per_forward)

    def collect(self) -> Iterator[Metric]:
        """Yield the engine's figures; Prometheus's client calls this for each scrape."""
        now = self._figures()
        for name, help, value in (
            ("waiting_requests", "Answers that wait for a place.", now.waiting),
            ("running_requests", "Answers that are being decoded.", now.running),
            ("kv_tokens_used", "Positions of the cache that running answers hold.", now.kv_tokens_used),
            ("kv_tokens_cached", "Positions of finished text in the prefix cache.", now.kv_tokens_cached),
            ("kv_tokens_limit", "Positions of the whole cache.", now.kv_tokens_total),
        ):
            yield GaugeMetricFamily(f"setblock_{name}", help, value=value)
        for name, help, value in (
            ("prefix_hit_tokens", "Prompt tokens that the cache held already.", now.prefix_hit_tokens),
            ("passes", "Forward passes of the model, each over all answers that take part.", now.passes),
            ("preemptions", "Times that an answer gave its part of the cache to an older one.", now.preemptions),
            ("draft_tokens", "Drafted tokens that were checked.", now.drafted_tokens),
            ("accepted_tokens", "Drafted tokens that were right.", now.accepted_tokens),
            ("wasted_tokens", "Drafted tokens that were wrong.", now.drafted_tokens - now.accepted_tokens),
        ):
            yield CounterMetricFamily(f"setblock_{name}", help, value=value)
        fed = CounterMetricFamily("setblock_fed_tokens", "Tokens fed to the model.", labels=["kind"])
        for kind in ("prefill", "block", "commit"):
            fed.add_metric([kind], getattr(now, f"{kind}_tokens"))
        yield fed
        curve = GaugeMetricFamily(
            "setblock_pass_seconds", "What a pass over so many tokens costs now.", labels=["tokens"]
        )
        for tokens, seconds in now.pass_seconds:
            curve.add_metric([str(tokens)], seconds)
        yield curve
