"""Measure whether calibration keeps what it promises, and what it costs. From the outcomes of sweeps; nothing is
decoded.

    python experiments/calibration.py runs/sweep.jsonl --tolerance accuracy=1 --out docs/experiments/calibration.md
    python experiments/calibration.py experiments/results/orders.jsonl --tolerance accuracy=3 --rule entropy-prefix

A file may be one of `setblock sweep` or one of `experiments/order_study.py`.

1. Splits: the examples of the first file are cut at random into a part to calibrate on and a part that is fresh, ten times
   over (`--splits`). The parts of one split share no example; those of different splits do, since they are cut from one set.
   Counted is on how many the chosen setting keeps the tolerance on the fresh part, and how its speed-up there compares with
   the best fixed setting: the fastest of one rule (`--rule`) that keeps the tolerance on that same fresh part, chosen in
   hindsight. Three ways to choose: from all settings of the file; from those of the rule with exact mode to fall back on; and
   from those of the rule alone.
2. Transfer: with several files, one for each domain and of the same grid, what each domain's calibrated setting loses on the
   others, and a fixed gamma.

The fresh part is a sample too: a setting that keeps the tolerance may break it there by chance, the more so the smaller it is.
"""

import argparse
import json
import random
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.progress import track

from order_study import by_rule, read_lines
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.operating_point import NTP, label_of, point_from_json, point_to_json
from setblock.errors import SetBlockError
from setblock.evaluation.calibration import Tolerance, calibrate, tolerance_of
from setblock.evaluation.result import Outcomes, Result, differing
from setblock.evaluation.sweeps.result_file import read_results


@dataclass(frozen=True)
class SplitResult:
    """Hold one split: the label of what was chosen, its loss and speed-up on the fresh part, and those of the best
    fixed setting."""

    chosen: str
    loss: float
    speedup: float
    best: str
    best_speedup: float


def main() -> None:
    """Compute, print, write."""
    options = parse_options()
    try:
        report = "\n".join(report_lines(options)) + "\n"
    except SetBlockError as error:
        sys.exit(f"error: {error}")
    print(report)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(report, encoding="utf-8")


def report_lines(options: argparse.Namespace) -> Iterator[str]:
    """Yield the report, in Markdown."""
    tolerance = tolerance_of(options.tolerance, confidence=options.confidence)
    sweeps = [results_of(path) for path in options.sweeps]
    yield "# Calibration"
    yield ""
    yield f"Tolerance: {tolerance.text}. Made by"
    yield ""
    yield "```text"
    yield f"python experiments/calibration.py {' '.join(sys.argv[1:])}"
    yield "```"
    if options.splits:
        yield from split_lines(sweeps[0], tolerance, options)
    if len(sweeps) > 1:
        yield from transfer_lines(sweeps, tolerance, fixed_gamma=options.fixed_gamma)


def results_of(path: Path) -> list[Result]:
    """Return the results in the file of a sweep or of the study of orders."""
    try:
        with path.open(encoding="utf-8") as file:
            is_study = "wording" in json.loads(next(file, "{}"))
    except (OSError, ValueError) as error:
        raise SetBlockError(f"can't read {path}: {error}") from error
    return study_results(path) if is_study else read_results(path)


def study_results(path: Path) -> list[Result]:
    """Return the results that the lines of a study make up, over the messages that every rule has answered."""
    answers = by_rule(read_lines(path))
    numbers = sorted(set.intersection(*(set(found) for found in answers.values())))
    task = {"name": path.stem, "options": {}, "num_examples": len(numbers)}
    run = {"task": task, "settings": {}, "model": {"name": path.stem, "fingerprint": "of the study"}}
    of_plain = answers.pop(label_of(NTP))
    plain = [of_plain[number] for number in numbers]
    results: list[Result] = []
    for found in (of_plain, *answers.values()):
        own = [found[number] for number in numbers]
        outcomes = Outcomes(
            tokens=tuple(line["tokens"] for line in own),
            prefill=(1,) * len(own),
            block=tuple(line["passes"] for line in own),
            commit=(0,) * len(own),  # a study counts them with the others
            differing=tuple(map(differing_tokens, own, plain)),
            correct=tuple(int(line["right"]) for line in own),
        )
        results.append(Result(run, point_from_json(own[0]["point"]), outcomes, 0.0, results[0] if results else None))
    return results


def differing_tokens(one: dict[str, Any], other: dict[str, Any]) -> int:
    """Return at how many tokens two answers differ, estimated by their characters: a study keeps texts and no tokens."""
    mine, theirs = one["text"].encode(), other["text"].encode()
    tokens: int = max(one["tokens"], other["tokens"])
    return round(tokens * differing(mine, theirs) / max(len(mine), len(theirs), 1))


def split_lines(sweep: Sequence[Result], tolerance: Tolerance, options: argparse.Namespace) -> Iterator[str]:
    """Yield what ten splits of one domain say."""
    task, total = sweep[0].run["task"], sweep[0].num_examples
    part = round(options.calibration_share * total)
    yield ""
    yield "## On fresh examples"
    yield ""
    yield (
        f"{task['name']} {task['options']}, {total:,} examples, model {sweep[0].run['model']['fingerprint']}; "
        f"{options.splits} random splits (seeds 0 to {options.splits - 1}) into {part:,} to calibrate on and {total - part:,} "
        f"fresh ones. Loss and speed-up are of the fresh part; *best* is the fastest {options.rule} setting that keeps the "
        "tolerance on that part, known in hindsight."
    )
    ways: dict[str, Callable[[Result], bool]] = {
        "all settings": lambda row: True,
        f"{options.rule}, exact mode to fall back on": lambda row: (
            is_of(options.rule, row) or row.point.method == "exact"
        ),
        f"{options.rule} alone": lambda row: is_of(options.rule, row),
    }
    for way, keeps in ways.items():
        narrowed = [sweep[0], *(row for row in sweep[1:] if keeps(row))]
        bests = [row for row in sweep[1:] if is_of(options.rule, row)]
        results = [
            one_split(narrowed, bests, tolerance, seed=seed, part=part)
            for seed in track(range(options.splits), description=way, transient=True)
        ]
        held = sum(result.loss <= tolerance.most for result in results)
        ratios = [result.speedup / result.best_speedup for result in results]
        yield ""
        yield f"### {way.capitalize()}"
        yield ""
        yield (
            f"The tolerance holds on {held} of {len(results)} splits. Speed-up over that of the best fixed setting: "
            f"{statistics.mean(ratios):.1%} on average, {min(ratios):.1%} at worst."
        )
        yield ""
        yield "| split | chosen | loss | NFE speed-up | best fixed setting | its speed-up | ratio |"
        yield "|---|---|---|---|---|---|---|"
        for number, (result, ratio) in enumerate(zip(results, ratios, strict=True)):
            yield (
                f"| {number} | {result.chosen} | {result.loss:.2%} | {result.speedup:.2f} | {result.best} | "
                f"{result.best_speedup:.2f} | {ratio:.1%} |"
            )


def one_split(
    sweep: Sequence[Result], bests: Sequence[Result], tolerance: Tolerance, *, seed: int, part: int
) -> SplitResult:
    """Calibrate on one part, look at the other. Plain decoding is used where nothing was found."""
    shuffled = list(range(sweep[0].num_examples))
    random.Random(seed).shuffle(shuffled)
    fresh = shuffled[part:]
    found = calibrate(sweep, tolerance, seed=seed, examples=shuffled[:part]).chosen
    chosen = next(row for row in sweep if found is None or row.point == found.point)
    kept = [row for row in bests if loss_of(row, tolerance, fresh) <= tolerance.most]
    best = max(kept, key=lambda row: speedup_of(row, fresh), default=sweep[0])
    return SplitResult(
        label_of(chosen.point),
        loss_of(chosen, tolerance, fresh),
        speedup_of(chosen, fresh),
        label_of(best.point),
        speedup_of(best, fresh),
    )


def transfer_lines(sweeps: Sequence[Sequence[Result]], tolerance: Tolerance, *, fixed_gamma: float) -> Iterator[str]:
    """Yield what each domain's setting does in the others."""
    names = [str(sweep[0].run["task"]["name"]) for sweep in sweeps]
    yield ""
    yield "## From one domain to another"
    yield ""
    yield (
        "Rows: what was calibrated on a domain, with all of its examples. Columns: loss and NFE speed-up of that setting on "
        "the examples of a domain. On its own domain these are the examples it was chosen on."
    )
    yield ""
    yield f"| calibrated on | setting | {' | '.join(names)} |"
    yield f"|---|---|{'---|' * len(names)}"
    for name, sweep in zip(names, sweeps, strict=True):
        found = calibrate(sweep, tolerance).chosen
        chosen = next(row for row in sweep if found is None or row.point == found.point)
        yield f"| {name} | {label_of(chosen.point)} | {' | '.join(cell(other, chosen, tolerance) for other in sweeps)} |"
    for fixed in sweeps[0][1:]:
        if is_of("entropy-bounded", fixed) and fixed.point.sampler == EntropyBounded(fixed_gamma):
            yield f"| none | {label_of(fixed.point)} | {' | '.join(cell(other, fixed, tolerance) for other in sweeps)} |"


def cell(sweep: Sequence[Result], chosen: Result, tolerance: Tolerance) -> str:
    """Return the loss and speed-up of a point in a domain."""
    for row in sweep:
        if row.point == chosen.point:
            everything = range(row.num_examples)
            loss = loss_of(row, tolerance, everything)
            return f"{loss:.2%}{' (over)' if loss > tolerance.most else ''}, {speedup_of(row, everything):.2f}"
    return "not decoded"


def is_of(rule: str, row: Result) -> bool:
    """Return whether a setting is of blocks without a check by a rule."""
    return row.point.method == "sbd" and point_to_json(row.point)["sampler"] == rule


def loss_of(row: Result, tolerance: Tolerance, examples: Sequence[int]) -> float:
    """Return the mean loss on some examples."""
    losses = row.lost if tolerance.measure == "accuracy" else row.differing
    return sum(losses[index] for index in examples) / len(examples)


def speedup_of(row: Result, examples: Sequence[int]) -> float:
    """Return the NFE speed-up on some examples."""
    return row.nfe_speedup_on(examples) or 1.0


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("sweeps", nargs="+", type=Path, metavar="FILE", help="of `setblock sweep`; several for the transfer")
    add("--tolerance", default="accuracy=1", metavar="MEASURE=PERCENT", help="as in `setblock calibrate` (accuracy=1)")
    add("--confidence", type=float, default=0.95, help="as in `setblock calibrate` (0.95)")
    add("--splits", type=int, default=10, help="how many; 0: the transfer alone (10)")
    add("--calibration-share", type=float, default=0.5, help="of the examples, to calibrate on (0.5)")
    add("--rule", default="entropy-bounded", help="whose best setting in hindsight is compared with (entropy-bounded)")
    add("--fixed-gamma", type=float, default=0.1, help="what the transfer is compared with (0.1)")
    add("--out", type=Path, metavar="FILE", help="write the report there too")
    options = parser.parse_args()
    if options.splits < 0:
        parser.error(f"--splits must be at least 0, not {options.splits}")
    if not 0 < options.calibration_share < 1:
        parser.error(f"--calibration-share must be above 0 and below 1, not {options.calibration_share:g}")
    return options


if __name__ == "__main__":
    main()
