"""Measure tokens per second of the engine at several concurrencies, with Transformers' batched `generate` and
continuous batching.

    python benchmarks/engine.py --out benchmarks/results/engine.json

The bundled model answers held-out word problems, greedily, `--requests` of them for each concurrency and contender; all are
there from the beginning, and at most so many run at once. Transformers gets them in batches of that size, padded on the left;
its continuous batching as many at once. Contenders take turns within each round, so that a machine's drift falls on all alike.
A table for people, and one line of JSON at the end.
"""

import argparse
import itertools
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch
from transformers import GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

import setblock
from measuring.output import begin, finish, parser_of
from measuring.timing import spread, timed
from setblock.data.tasks.word_problems import word_problems
from setblock.decoding.answer.text import encode_prompt
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.offline.offline import answered
from setblock.engine.request import Request
from setblock.model.sbd_model import SBDModel

Prompts = Sequence[Sequence[int]]
Contender = Callable[[Prompts, int], int]
"""Answers prompts, so many at once; returns how many tokens it wrote."""

CONTENDERS = ("engine sbd", "engine exact", "engine ntp", "transformers generate", "transformers continuous batching")


def main() -> None:
    """Measure, print, and write."""
    options = parse_options()
    results = begin("engine", options) | {"requests": options.requests, "rounds": options.rounds, "rows": []}
    sbd = setblock.load(options.model) if options.model else setblock.load()
    problems = itertools.islice(word_problems("test"), options.requests)
    prompts = [encode_prompt(sbd.tokenizer, problem.question) for problem in problems]
    for concurrency in options.concurrency:
        results["rows"] += measured(sbd, prompts, concurrency, options)
    finish(results, options)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", help="folder or hub id (the bundled model)")
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--concurrency", type=int, nargs="+", default=[1, 4, 8, 16, 32])
    parser.add_argument("--contenders", nargs="+", choices=CONTENDERS, default=list(CONTENDERS))
    parser.add_argument("--max-new-tokens", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.quick:
        options.requests, options.concurrency, options.max_new_tokens, options.rounds = 2, [2], 8, 1
    return options


def measured(sbd: SBDModel, prompts: Prompts, concurrency: int, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return a row for each contender at one concurrency. The first round warms up; a contender that can't run says
    why."""
    times: dict[str, list[float]] = {name: [] for name in options.contenders}
    tokens: dict[str, int] = {}
    failed: dict[str, str] = {}
    for round_ in range(1 + options.rounds):
        for name in options.contenders:
            if name in failed:
                continue
            contender = contender_of(name, sbd, options.max_new_tokens)
            try:
                tokens[name], taken = timed(partial(contender, prompts, concurrency))
            except (RuntimeError, ValueError, TypeError, AttributeError, ImportError) as error:  # of Transformers
                if name.startswith("engine"):
                    raise
                failed[name] = str(error).splitlines()[0] if str(error) else type(error).__name__
                continue
            if round_:
                times[name].append(taken)
    rows = []
    for name in options.contenders:
        row: dict[str, Any] = {"contender": name, "concurrency": concurrency}
        if name in failed:
            row["failed"] = failed[name]
        else:
            speeds = [tokens[name] / each for each in times[name]]
            row |= {"tokens": tokens[name], "tokens_per_second": asdict(spread(speeds))}
        rows.append(row)
    return rows


def contender_of(name: str, sbd: SBDModel, max_new_tokens: int) -> Contender:
    """Return one way to answer."""
    kind, _, what = name.partition(" ")

    def by_engine(prompts: Prompts, concurrency: int) -> int:
        settings = DecodingSettings(method=what, max_new_tokens=max_new_tokens)  # type: ignore[arg-type]
        longest = max(map(len, prompts)) + max_new_tokens + EngineLimits.page_tokens
        engine = Engine(sbd, EngineLimits(max_num_seqs=concurrency, kv_tokens=concurrency * longest))
        requests = (Request(str(n), prompt, settings) for n, prompt in enumerate(prompts))
        return sum(generation.num_tokens for _, generation in answered(engine, requests))

    def by_generate(prompts: Prompts, concurrency: int) -> int:
        written = 0
        for first in range(0, len(prompts), concurrency):
            batch = prompts[first : first + concurrency]
            width = max(map(len, batch))
            padded = [[0] * (width - len(prompt)) + list(prompt) for prompt in batch]
            real = [[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in batch]
            output = sbd.model.generate(
                torch.tensor(padded, device=sbd.device),
                attention_mask=torch.tensor(real, device=sbd.device),
                generation_config=greedy(sbd, max_new_tokens),
            )
            written += sum(answer_length(row, sbd) for row in output[:, width:].tolist())
        return written

    def by_continuous_batching(prompts: Prompts, concurrency: int) -> int:
        outputs = sbd.model.generate_batch(
            [list(prompt) for prompt in prompts],
            generation_config=greedy(sbd, max_new_tokens),
            continuous_batching_config=ContinuousBatchingConfig(max_requests_per_batch=concurrency),
        )
        return sum(len(each.generated_tokens) for each in outputs.values())

    if kind == "engine":
        return by_engine
    return by_generate if what == "generate" else by_continuous_batching


def greedy(sbd: SBDModel, max_new_tokens: int) -> GenerationConfig:
    """Return a config of plain greedy decoding."""
    return GenerationConfig(
        max_new_tokens=max_new_tokens, do_sample=False, eos_token_id=list(sbd.end_of_text_ids), pad_token_id=0
    )


def answer_length(token_ids: Sequence[int], sbd: SBDModel) -> int:
    """Return the number of tokens up to the first end-of-text, which counts."""
    ends = [place for place, token_id in enumerate(token_ids) if token_id in sbd.end_of_text_ids]
    return ends[0] + 1 if ends else len(token_ids)


if __name__ == "__main__":
    main()
