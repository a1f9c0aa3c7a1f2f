"""Load on a live server: how many tokens a second, and how long each client waits, in blocks and by plain decoding.

    python benchmarks/serving.py load --out benchmarks/results/serving.json
    python benchmarks/serving.py soak --minutes 10 --out benchmarks/results/serving_soak.json

`load`: N clients, each of which asks its next question when the last one is answered, for N = 1, 4, 8, 16, 32. `soak`: twice as
many clients as the server takes, for minutes; 429 is expected and tried again, anything else that is not an answer is an error,
and memory is to stay flat. Both start `setblock serve` as a separate process unless --url names a server. A table for people,
and one line of JSON at the end.
"""

import argparse
import asyncio
import itertools
import json
import statistics
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx2 as httpx
from rich.console import Console
from rich.table import Table

from measuring.hardware import provenance, resident_bytes
from measuring.output import finish
from server_process import ServerProcess, server_process
from setblock.data.tasks.word_problems import word_problems

CONCURRENCIES = (1, 4, 8, 16, 32)
PERCENTILES = (50, 95, 99)
WARM_UP = 4  # requests that are not counted


@dataclass
class Sample:
    """Hold what clients saw. Seconds."""

    first: list[float] = field(default_factory=list)
    gaps: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    tokens: int = 0
    forwards: int = 0
    seconds: float = 0.0
    statuses: Counter[str] = field(default_factory=Counter)

    def report(self) -> dict[str, Any]:
        """Return the figures for the JSON."""
        return {
            "requests": len(self.whole),
            "statuses": dict(self.statuses),
            "tokens_per_second": self.tokens / self.seconds,
            "requests_per_second": len(self.whole) / self.seconds,
            "tokens_per_forward": self.tokens / self.forwards if self.forwards else None,
            "first_text_seconds": percentiles(self.first),
            "inter_token_seconds": percentiles(self.gaps),
            "request_seconds": percentiles(self.whole),
        }


def main() -> None:
    """Drive, print, and write."""
    options = parse_options()
    with ExitStack() as stack:
        server, url = None, options.url
        if url is None:
            server = stack.enter_context(server_process(*options.server_options))
            url = server.url
        run = soak if options.mode == "soak" else load
        results = {"benchmark": f"serving {options.mode}", **provenance(), **run(url, server, options)}
    finish(results, options)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("mode", choices=["load", "soak"])
    parser.add_argument("--url", help="a server that runs already")
    parser.add_argument("--model", default="word-problems", help="its model's id")
    parser.add_argument("--gamma", type=float, default=0.03)
    parser.add_argument("--requests", type=int, default=64, help="per concurrency and method, in mode load")
    parser.add_argument("--concurrency", type=int, nargs="*", default=CONCURRENCIES)
    parser.add_argument("--minutes", type=float, default=10.0, help="in mode soak")
    parser.add_argument("--capacity", type=int, default=16, help="requests that the server takes at once, in mode soak")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    soaking = ["--max-requests", str(options.capacity), "--max-num-seqs", str(max(1, options.capacity // 2))]
    options.server_options = ["--log-level", "warning", *(soaking if options.mode == "soak" else [])]
    return options


def load(url: str, _: ServerProcess | None, options: argparse.Namespace) -> dict[str, Any]:
    """Run closed loops of clients, for each concurrency and method."""
    rows = []
    table = Table("method", "clients", "tokens/s", "tokens/forward", "first text p50/p95/p99", "gap", "request")
    bodies = {"sbd": {"method": "sbd", "gamma": options.gamma}, "ntp": {"method": "ntp"}}
    for clients, (method, body) in itertools.product(options.concurrency, bodies.items()):
        asyncio.run(closed_loop(url, options.model, body, clients=clients, requests=WARM_UP))
        sample = asyncio.run(closed_loop(url, options.model, body, clients=clients, requests=options.requests))
        report = sample.report()
        rows.append({"method": method, "clients": clients, **report})
        times = [told(report[name]) for name in ("first_text_seconds", "inter_token_seconds", "request_seconds")]
        table.add_row(
            method,
            str(clients),
            f"{report['tokens_per_second']:.1f}",
            "" if report["tokens_per_forward"] is None else f"{report['tokens_per_forward']:.2f}",
            *times,
        )
    Console().print(table)
    return {"gamma": options.gamma, "rows": rows}


def soak(url: str, server: ServerProcess | None, options: argparse.Namespace) -> dict[str, Any]:
    """Load the server with twice its capacity, for minutes, and read its memory every few seconds."""
    if server is None:
        raise SystemExit("soak looks at the server's memory: leave --url out")
    sample = Sample()
    memory: list[tuple[float, int]] = []
    deadline = time.monotonic() + 60 * options.minutes
    asyncio.run(soaked(url, options, server, sample, memory, deadline))
    third = max(1, len(memory) // 3)
    early, late = (statistics.median(each for _, each in part) for part in (memory[third : 2 * third], memory[-third:]))
    crashed = server.process.poll() is not None
    unexpected = {name: count for name, count in sample.statuses.items() if name not in ("200", "429")}
    Console().print(
        f"{options.minutes:g} minutes, {2 * options.capacity} clients: {dict(sample.statuses)}; memory "
        f"{early / 2**20:.0f} MiB in the second third, {late / 2**20:.0f} MiB in the last; {'CRASHED' if crashed else 'alive'}"
    )
    return {
        "minutes": options.minutes,
        "capacity": options.capacity,
        "clients": 2 * options.capacity,
        **sample.report(),
        "memory_bytes": {"second_third": early, "last_third": late},
        "crashed": crashed,
        "unexpected": unexpected,
    }


async def soaked(
    url: str,
    options: argparse.Namespace,
    server: ServerProcess,
    sample: Sample,
    memory: list[tuple[float, int]],
    deadline: float,
) -> None:
    """Run the clients of a soak, and the task that watches the memory."""
    bodies = itertools.cycle(
        [{"method": "sbd", "gamma": options.gamma}, {"method": "ntp"}, {"method": "exact"}, {"temperature": 1.0}]
    )
    started = time.monotonic()

    async def ask_on(client: httpx.AsyncClient, questions: Iterator[str]) -> None:
        while time.monotonic() < deadline:
            status = await ask(client, options.model, next(questions), next(bodies), sample)
            if status != "200":
                await asyncio.sleep(0.2)

    async def watch() -> None:
        while time.monotonic() < deadline and server.process.poll() is None:
            memory.append((time.monotonic() - started, resident_bytes(process=server.process.pid)))
            await asyncio.sleep(2)

    questions = (problem.question for problem in itertools.cycle(itertools.islice(word_problems("validation"), 500)))
    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(watch(), *(ask_on(client, questions) for _ in range(2 * options.capacity)))
    sample.seconds = time.monotonic() - started


async def closed_loop(url: str, model: str, body: dict[str, Any], *, clients: int, requests: int) -> Sample:
    """Run so many clients until so many requests are answered."""
    sample = Sample()
    questions = iter([problem.question for problem in itertools.islice(word_problems("validation"), requests)])
    started = time.perf_counter()

    async def ask_on(client: httpx.AsyncClient) -> None:
        for question in questions:
            await ask(client, model, question, body, sample)

    async with httpx.AsyncClient(base_url=url, timeout=300, limits=httpx.Limits(max_connections=None)) as client:
        await asyncio.gather(*(ask_on(client) for _ in range(clients)))
    sample.seconds = time.perf_counter() - started
    return sample


async def ask(client: httpx.AsyncClient, model: str, question: str, body: dict[str, Any], sample: Sample) -> str:
    """Send one streamed request, and record what became of it."""
    request = {
        "model": model,
        "messages": [{"role": "user", "content": question}],
        "stream": True,
        "stream_options": {"include_usage": True},
        **body,
    }
    started = last = time.perf_counter()
    had_text, usage, status = False, None, "broken"
    try:
        async with client.stream("POST", "/v1/chat/completions", json=request) as response:
            status = str(response.status_code)
            async for line in response.aiter_lines():
                if not line.startswith("data: {"):
                    continue
                chunk = json.loads(line.removeprefix("data: "))
                if "error" in chunk:
                    status = str(chunk["error"]["code"])
                usage = chunk.get("usage") or usage
                if any(choice["delta"].get("content") for choice in chunk.get("choices", ())):
                    now = time.perf_counter()
                    (sample.gaps if had_text else sample.first).append(now - last)
                    had_text, last = True, now
    except httpx.HTTPError as error:
        status = type(error).__name__
    if status == "200" and usage is not None:
        sample.whole.append(time.perf_counter() - started)
        sample.tokens += usage["completion_tokens"]
        sample.forwards += usage["num_forwards"]
    sample.statuses[status] += 1
    return status


def percentiles(values: list[float]) -> dict[str, float] | None:
    """Return percentiles of a few values, the nearest there are."""
    if not values:
        return None
    ordered = sorted(values)
    return {f"p{each}": ordered[min(len(ordered) - 1, len(ordered) * each // 100)] for each in PERCENTILES}


def told(found: dict[str, float] | None) -> str:
    """Return a time in milliseconds as text."""
    return "" if found is None else " / ".join(f"{1000 * value:.0f}" for value in found.values()) + " ms"


if __name__ == "__main__":
    main()
