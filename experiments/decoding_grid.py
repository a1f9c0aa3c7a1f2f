"""Decode the same word problems by many settings, and set their accuracy against their forward passes.

    python experiments/decoding_grid.py samplers --limit 1000 --out experiments/results/samplers.jsonl

Four grids: `gammas` (the entropy-bounded sampler alone, and exact mode), `samplers` (every rule at several hyperparameters),
`drafts` (how exact mode had best make its drafts) and `blocks` (fixed block sizes against adaptive ones). A line of JSON for
each setting; those that the file has already are not run again.
The last thing printed is a table in Markdown. Use `--split validation` to choose anything.
"""

import argparse
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import setblock
from setblock.data.word_problems import SPLITS, WordProblem, answer_in, word_problems
from setblock.decoding.generate import Generation, generate_batch
from setblock.decoding.samplers import (
    SAMPLERS,
    ConfidenceThreshold,
    ConfidentPrefix,
    EntropyBounded,
    EntropyThreshold,
    Factor,
    FixedCount,
    LeftToRight,
    Sampler,
)
from setblock.decoding.settings import DecodingSettings
from setblock.evaluation.interval import wilson_interval
from setblock.model.sbd_model import SBDModel

Grid = Mapping[str, DecodingSettings]
GAMMAS = (0.0001, 0.001, 0.002, 0.003, 0.005, 0.01, 0.02, 0.03, 0.1, 0.35, 1.5)
THRESHOLDS = (0.7, 0.9, 0.95, 0.99, 0.999)


def main() -> None:
    """Run a grid, print its table."""
    options = parse_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    model = setblock.load(options.model) if options.model else setblock.load()
    problems = list(islice(word_problems(options.split, seed=options.seed), options.limit))
    out = Path(options.out) if options.out else None
    rows = [json.loads(line) for line in out.read_text().splitlines()] if out and out.exists() else []
    wanted = {"ntp": DecodingSettings(method="ntp"), **GRIDS[options.grid]()}
    reference: Sequence[Generation] = ()
    for name, settings in wanted.items():
        if name != "ntp" and any(row["name"] == name for row in rows):
            continue
        started = time.perf_counter()
        answers = decode(model, problems, settings, batch_size=options.batch_size)
        if name == "ntp":
            reference = answers
            if any(row["name"] == name for row in rows):
                continue
        row = {"name": name, **figures(problems, answers, reference), "seconds": time.perf_counter() - started}
        rows.append(row | {"split": options.split, "seed": options.seed})
        if out:
            out.parent.mkdir(parents=True, exist_ok=True)
            with out.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
        print(table_row(rows[-1]), flush=True)
    print("\n" + "\n".join(table(rows)))


def decode(
    model: SBDModel, problems: Sequence[WordProblem], settings: DecodingSettings, *, batch_size: int
) -> list[Generation]:
    """The answers to the problems."""
    questions = [problem.question for problem in problems]
    batches = [questions[first : first + batch_size] for first in range(0, len(questions), batch_size)]
    return [answer for batch in batches for answer in generate_batch(model, batch, settings=settings)]


def figures(
    problems: Sequence[WordProblem], answers: Sequence[Generation], reference: Sequence[Generation]
) -> dict[str, Any]:
    """Accuracy and passes of `answers`, beside next-token decoding's."""
    correct = sum(answer_in(a.text) == p.answer for a, p in zip(answers, problems, strict=True))
    block, commit = sum(a.passes.block for a in answers), sum(a.passes.commit for a in answers)
    return {
        "examples": len(answers),
        "accuracy": correct / len(answers),
        "interval": wilson_interval(correct, len(answers)),
        "identical": sum(a.token_ids == r.token_ids for a, r in zip(answers, reference, strict=True)) / len(answers),
        "tokens": sum(a.num_tokens for a in answers),
        "block": block,
        "commit": commit,
        "nfe_speedup": sum(r.passes.decoding for r in reference) / (block + commit),
    }


def gamma_grid() -> Grid:
    """The entropy-bounded sampler at every gamma, and exact mode as it is by default."""
    return {f"gamma={gamma:g}": DecodingSettings(sampler=EntropyBounded(gamma)) for gamma in GAMMAS} | {
        "exact": DecodingSettings(method="exact")
    }


def sampler_grid() -> Grid:
    """Every rule of the table `SAMPLERS`, those with one main hyperparameter at several values of it."""
    proxies: list[Sampler] = [EntropyBounded(0.1, "confidence"), EntropyBounded(0.1, "margin")]
    swept: list[Sampler] = [
        *map(EntropyBounded, GAMMAS),
        *proxies,
        *map(EntropyThreshold, (0.001, 0.01, 0.1, 0.3)),
        *map(ConfidenceThreshold, THRESHOLDS),
        *map(Factor, (0.01, 0.05, 0.2, 0.5, 1.0)),
        *map(FixedCount, (1, 2, 4)),
        LeftToRight(),
        *map(ConfidentPrefix, THRESHOLDS),
    ]
    others = [rule() for rule in SAMPLERS.values() if not any(type(each) is rule for each in swept)]
    return {str(sampler): DecodingSettings(sampler=sampler) for sampler in [*swept, *others]}


def draft_grid() -> Grid:
    """Drafts of exact mode: which rule, how many passes, whether what lies past a gap is kept, how long a block."""

    def cases() -> Iterator[tuple[Sampler, int, bool, int]]:
        whole = EntropyBounded(float("inf"))
        for size in (4, 8, 16):
            yield whole, 1, False, size
        for passes in (1, 2, 3):
            for gamma in (0.1, 0.35, 1.0, 3.0):
                yield EntropyBounded(gamma), passes, False, 16
            for threshold in (0.3, 0.5, 0.7, 0.9):
                yield ConfidentPrefix(threshold), passes, False, 16
                yield ConfidenceThreshold(threshold), passes, False, 16
                yield ConfidenceThreshold(threshold), passes, True, 16
        for gamma in (0.1, 0.35, 1.0, 3.0):
            yield EntropyBounded(gamma), 16, False, 16

    return {
        f"{sampler} passes={passes} adaptive={adaptive} k={size}": DecodingSettings(
            method="exact", sampler=sampler, draft_passes=passes, adaptive_blocks=adaptive, block_size=size
        )
        for sampler, passes, adaptive, size in cases()
    }


def block_grid() -> Grid:
    """Fixed and adaptive blocks, by the entropy-bounded sampler."""
    return {
        f"gamma={gamma:g} k={size}{' adaptive' if adaptive else ''}": DecodingSettings(
            sampler=EntropyBounded(gamma), block_size=size, adaptive_blocks=adaptive
        )
        for adaptive in (False, True)
        for size in (4, 8, 16)
        for gamma in (0.001, 0.01, 0.1, 0.35)
    }


GRIDS = {"gammas": gamma_grid, "samplers": sampler_grid, "drafts": draft_grid, "blocks": block_grid}


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Markdown."""
    head = [
        "| setting | accuracy | 95% interval | as NTP | NFE speed-up | block | commit |",
        "|---|---|---|---|---|---|---|",
    ]
    return head + [table_row(row) for row in rows]


def table_row(row: Mapping[str, Any]) -> str:
    """One line of it; passes are means of one answer."""
    low, high = row["interval"]
    n = row["examples"]
    cells = (
        row["name"],
        f"{row['accuracy']:.1%}",
        f"{low:.1%} to {high:.1%}",
        f"{row['identical']:.1%}",
        f"{row['nfe_speedup']:.2f}x",
        f"{row['block'] / n:.1f}",
        f"{row['commit'] / n:.1f}",
    )
    return f"| {' | '.join(cells)} |"


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("grid", choices=sorted(GRIDS))
    parser.add_argument("--model", help="folder or hub id; by default the bundled model")
    parser.add_argument("--split", choices=SPLITS, default="test")
    parser.add_argument("--limit", type=int, default=200, help="how many problems")
    parser.add_argument("--seed", type=int, default=0, help="other problems of the split")
    parser.add_argument("--batch-size", type=int, default=100)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's own choice")
    parser.add_argument("--out", help="a JSONL file, to be gone on with")
    return parser.parse_args()


if __name__ == "__main__":
    main()
