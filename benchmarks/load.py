"""Measure exact mode against plain decoding under load: requests at once, drafts of each fixed length, and as it decides.

    python benchmarks/load.py --out benchmarks/results/load.jsonl
    python benchmarks/load.py --report benchmarks/results/load.jsonl --picture runs/load.svg

A cell is a model with its prompts, and a number of requests at once, in the engine that `setblock serve` uses or in a batch as
`setblock evaluate --batch-size` does. The engine gets twice as many requests as run at once, and at least eight in all, whose
answers end at different lengths: one begins where another ends. All ways to decode answer the same requests side by side: the
next pass is always that of the way which has the fewest tokens yet. So a machine that slows down for a second slows all of
them. The first round of a cell measures all fixed lengths, the next ones only those within a tenth of the best. Each round of a
cell is a line of JSON, written when it is done. The program can be ended at any time, and continues where it was: the first
round of all cells comes first, and the cells that say most before the others.

Figures are tokens a second over plain decoding's, medians over the rounds: as it decides, the best fixed length, and the length
that was the default of earlier commits. Texts are compared with plain decoding's, too. The machine should do nothing else.
"""

import argparse
import json
import random
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

import torch

import setblock
from measuring.hardware import provenance
from measuring.output import note, show
from measuring.tables import markdown
from setblock.data.tasks import task_named
from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import Engine, Request
from setblock.engine.generate import together
from setblock.engine.offline import limits_for
from setblock.evaluation.run import prompts_of
from setblock.model.sbd_model import SBDModel

LOADS = (1, 2, 4, 8, 16, 32)
FIXED = (2, 4, 8, 16)
ROUNDS, TOKENS, BATCH, REQUESTS = 5, 64, 20, 8
PLAIN, ADAPTIVE = "plain", "adaptive"


@dataclass(frozen=True)
class Subject:
    """Describe a model and what it is asked.

    Attributes:
        model: its name; None for the included one.
        task: whose prompts it gets.
        default: the draft length that was the default before drafts were adaptive.
        tokens: how many times `--tokens` its answers may have.
        requests: how many times as many requests it gets as other models: a small one answers few too soon to be timed well.
    """

    model: str | None
    task: str
    default: int
    tokens: int = 1
    requests: int = 1


SUBJECTS = {
    "smollm2, English": Subject("smollm2", "instructions", 4),
    "smollm2-records": Subject("models/smollm2-records", "tasks/extraction", 8, 2),
    "smollm2, HumanEval": Subject("smollm2", "tasks/humaneval", 4),
    "bundled": Subject(None, "word-problems", 16, requests=5),
}
BY_VALUE = (8, 1, 32, "batch", 16, 4, 2)
"""Loads, those first that say most."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and write, or report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, metavar="FILE", help="JSON lines, to which rounds are added")
    parser.add_argument("--report", type=Path, metavar="FILE", help="measure nothing: print the table of such a file")
    parser.add_argument("--picture", type=Path, metavar="FILE", help="with --report: draw gain against load")
    parser.add_argument("--subjects", default=",".join(SUBJECTS), metavar="NAME;...", help="separated by semicolons")
    parser.add_argument("--loads", default=",".join(map(str, BY_VALUE)), help="requests at once, and `batch`")
    parser.add_argument("--fixed", type=int, nargs="+", default=FIXED, metavar="K", help="the fixed draft lengths")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument(
        "--requests", type=int, default=REQUESTS, help=f"at least, of a cell of the engine ({REQUESTS})"
    )
    parser.add_argument("--tokens", type=int, default=TOKENS, help=f"at most, of an answer ({TOKENS})")
    parser.add_argument("--threads", type=int, help="PyTorch's threads (its own choice)")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="begin no round of a cell after so long")
    parser.add_argument("--quick", action="store_true", help="two cells of the included model: checks that it runs")
    options = parser.parse_args(arguments)
    if options.report is not None:
        report(read(options.report), options.picture)
        return
    if options.threads:
        torch.set_num_threads(options.threads)
    measure(options)
    if options.out is not None:
        report(read(options.out), None)


def measure(options: argparse.Namespace) -> None:
    """Measure the rounds that are not there yet."""
    subjects = [each.strip() for each in options.subjects.split(";" if ";" in options.subjects else "\n")]
    subjects = list(SUBJECTS) if options.subjects == ",".join(SUBJECTS) else subjects
    loads: list[int | str] = [each if each == "batch" else int(each) for each in options.loads.split(",")]
    rounds, tokens = options.rounds, options.tokens
    if options.quick:
        subjects, loads, rounds, tokens = ["bundled"], [2, "batch"], 1, 8
    done = {(each["subject"], each["load"], each["round"]): each for each in read(options.out)}
    until = time.monotonic() + 60 * options.minutes
    for turn in range(rounds):
        for load in loads:
            for name in subjects:
                if (name, load, turn) in done or time.monotonic() > until:
                    continue
                found = {"subject": name, "load": load, "round": turn, "tokens": tokens, "quick": options.quick}
                sizes = near_best(done.get((name, load, 0)), options.fixed)
                ways = of_cell(SUBJECTS[name], load, turn, tokens, sizes, requests=options.requests)
                found |= {"ways": ways, **provenance()}
                done[name, load, turn] = found
                line = json.dumps(found)
                if options.out is None:
                    print(line)
                else:
                    options.out.parent.mkdir(parents=True, exist_ok=True)
                    with options.out.open("a") as file:
                        file.write(line + "\n")
                ratios = {way: ratio(found, way) for way in found["ways"]}
                note(
                    f"round {turn + 1}, {name}, {load}: "
                    + ", ".join(f"{way} {each:.2f}" for way, each in ratios.items())
                )


def near_best(first: dict[str, Any] | None, fixed: Sequence[int]) -> list[int]:
    """Return the fixed lengths that are worth a measurement, given the first round of a cell, if there was one."""
    if first is None:
        return list(fixed)
    ratios = {size: ratio(first, str(size)) for size in fixed}
    return [size for size in fixed if ratios[size] >= 0.9 * max(ratios.values())]


def of_cell(
    subject: Subject, load: int | str, turn: int, tokens: int, sizes: Sequence[int], *, requests: int = REQUESTS
) -> dict[str, Any]:
    """Return what each way took in one round of a cell. `sizes`: the fixed draft lengths. `requests`: at least so many, where
    the engine answers them."""
    model, count = loaded(subject.model), BATCH if load == "batch" else max(2 * int(load), requests)
    prompts = prompts_for(subject, subject.requests * count, turn)
    limit = DecodingSettings(max_new_tokens=tokens * subject.tokens)
    settings = {
        PLAIN: replace(limit, method="ntp"),
        ADAPTIVE: limit,
        **{str(size): replace(limit, drafts="fixed", block_size=size) for size in sizes},
    }
    ways = {name: Way(model, prompts, each, load) for name, each in settings.items()}
    unfinished = list(ways.values())
    while unfinished:
        behind = min(unfinished, key=lambda way: way.tokens)
        if not behind.step():
            unfinished.remove(behind)
    plain = [each.token_ids for each in ways[PLAIN].answers]
    return {
        name: {
            "seconds": way.seconds,
            "tokens": sum(each.num_tokens for each in way.answers),
            "passes": way.passes,
            "forwards": sum(each.num_forwards for each in way.answers),
            "drafted": sum(each.drafted for each in way.answers),
            "accepted": sum(each.accepted for each in way.answers),
            "answers": len(way.answers),
            "same": sum(each.token_ids == other for each, other in zip(way.answers, plain, strict=True)),
        }
        for name, way in ways.items()
    }


class Way:
    """Answer prompts by one way to decode, a pass at a time.

    Attributes:
        answers: in the order of the prompts, when all passes are done.
        tokens: how many are there already.
        passes, seconds: how many passes it took, and how long.
    """

    def __init__(
        self, model: SBDModel, prompts: Sequence[list[int]], settings: DecodingSettings, load: int | str
    ) -> None:
        """Begin with nothing done."""
        self.answers: list[Generation] = []
        self.tokens, self.passes, self.seconds = 0, 0, 0.0
        self._work = self._in_batches(model, prompts, settings)
        if load != "batch":
            self._work = self._in_engine(model, prompts, settings, int(load))

    def step(self) -> bool:
        """Run the next pass. Return False if there is none."""
        started = time.perf_counter()
        tokens = next(self._work, None)
        self.seconds += time.perf_counter() - started
        if tokens is not None:
            self.tokens, self.passes = tokens, self.passes + 1
        return tokens is not None

    def _in_batches(self, model: SBDModel, prompts: Sequence[list[int]], settings: DecodingSettings) -> Iterator[int]:
        """Do what `generate_batch` does, and yield the number of tokens after each pass."""
        for first in range(0, len(prompts), BATCH):
            batch, before = prompts[first : first + BATCH], self.tokens
            found, ends = dict[int, Generation](), dict[str, int]()
            for passes in together(model, [(prompt, settings) for prompt in batch]):
                for each in passes:
                    if each.event is not None:
                        ends[each.id] = each.event.answer_end - len(batch[int(each.id)])
                    if each.generation is not None:
                        found[int(each.id)] = each.generation
                yield before + sum(ends.values())
            self.answers += [found[row] for row in range(len(batch))]

    def _in_engine(
        self, model: SBDModel, prompts: Sequence[list[int]], settings: DecodingSettings, load: int
    ) -> Iterator[int]:
        """Do what the server does, and yield the number of tokens after each pass."""
        most, draw = settings.max_new_tokens, random.Random(len(prompts))
        assert most is not None
        requests = {
            str(number): Request(str(number), prompt, replace(settings, max_new_tokens=draw.randint(most // 4, most)))
            for number, prompt in enumerate(prompts)
        }
        engine = Engine(model, limits_for(model, requests.values(), concurrency=load))
        for request in requests.values():
            engine.submit(request)
        found, ends = dict[str, Generation](), dict[str, int]()
        while not engine.is_idle:
            for progress in engine.step():
                if progress.event is not None:
                    ends[progress.id] = progress.event.answer_end - len(requests[progress.id].prompt)
                if progress.generation is not None:
                    found[progress.id] = progress.generation
            yield sum(ends.values())
        self.answers = [found[name] for name in requests]


@cache
def loaded(name: str | None) -> SBDModel:
    """Return a model as `setblock serve` would run it."""
    if name is None:
        return setblock.load()
    model = setblock.load(name, dtype=torch.bfloat16)
    if model.device.type == "cpu":
        model.prepack()
    return model


@cache
def prompts_for(subject: Subject, count: int, turn: int) -> list[list[int]]:
    """Return the prompts of a round: the same for all loads and ways, as far as they go."""
    model, task = loaded(subject.model), task_named(subject.task)
    examples = list(islice(task.examples("test", seed=0), turn * 8, turn * 8 + count))
    requested, raw = prompts_of(task, examples, model)
    return [encode_prompt(model.tokenizer, each, raw=raw) for each in requested]


def read(path: Path | None) -> list[dict[str, Any]]:
    """Return the rounds in a file; a line that was cut off is left out."""
    if path is None or not path.exists():
        return []
    *lines, rest = path.read_text().split("\n")
    if rest:
        path.write_text("".join(f"{line}\n" for line in lines))
    return [json.loads(line) for line in lines]


def ratio(found: dict[str, Any], way: str) -> float:
    """Return the tokens a second of a way over those of plain decoding in the same round."""
    mine, plain = found["ways"][way], found["ways"][PLAIN]
    return float(mine["tokens"] / mine["seconds"] / (plain["tokens"] / plain["seconds"]))


def medians(rounds: Sequence[dict[str, Any]]) -> Iterator[tuple[str, int | str, dict[str, float], dict[str, Any]]]:
    """Yield each cell: its subject and load, the median ratio of each way, and of its rounds what they say of texts."""
    cells: dict[tuple[str, int | str], list[dict[str, Any]]] = defaultdict(list)
    for each in rounds:
        cells[each["subject"], each["load"]].append(each)
    order = {name: place for place, name in enumerate(SUBJECTS)}
    for (name, load), found in sorted(cells.items(), key=lambda cell: (order[cell[0][0]], str(cell[0][1]).zfill(9))):
        ways = found[0]["ways"]  # those of the first round
        same = sum(way["same"] for each in found for way in each["ways"].values())
        of_all = sum(way["answers"] for each in found for way in each["ways"].values())
        yield (
            name,
            load,
            {way: median(ratio(each, way) for each in found if way in each["ways"]) for way in ways},
            {
                "rounds": len(found),
                "same": same,
                "answers": of_all,
                "spread": sorted(ratio(each, ADAPTIVE) for each in found),
            },
        )


def best_fixed(ratios: dict[str, float]) -> str:
    """Return the fixed draft length that gains most."""
    return max((way for way in ratios if way not in (PLAIN, ADAPTIVE)), key=lambda way: ratios[way])


def row_of(name: str, load: int | str, ratios: dict[str, float], about: dict[str, Any]) -> str:
    """Return the row of a cell in docs/drafts.md."""
    best, spread = best_fixed(ratios), about["spread"]
    rounds = f"{spread[0]:.2f} to {spread[-1]:.2f}" if len(spread) > 1 else "one round"
    return f"| {name} | {load} | {ratios[ADAPTIVE]:.2f} ({rounds}) | {ratios[best]:.2f} (k = {best}) |"


def report(rounds: Sequence[dict[str, Any]], picture: Path | None) -> None:
    """Print the table of medians and the least of each figure; draw it if asked to."""
    rows, over_best, over_default, adaptive = [], [], [], []
    found = list(medians(rounds))
    for name, load, ratios, about in found:
        best = best_fixed(ratios)
        mine, default = ratios[ADAPTIVE], ratios.get(str(SUBJECTS[name].default), float("nan"))
        adaptive.append(mine)
        over_best.append(mine / max(1.0, ratios[best]))
        over_default.append(mine / default)
        rows.append(
            [
                name,
                str(load),
                f"{mine:.2f}",
                f"{ratios[best]:.2f} (k = {best})",
                f"{default:.2f}",
                f"{over_best[-1]:.2f}",
                f"{about['same']} of {about['answers']}",
                str(about["rounds"]),
            ]
        )
    if not rows:
        return
    columns = ["model", "at once", "adaptive", "best fixed", "earlier default", "over the best", "same text", "rounds"]
    show(markdown(columns, rows))
    show(
        f"Least of all cells: {min(adaptive):.2f} of plain decoding, {min(over_best):.2f} of the better of plain decoding and "
        f"the best fixed length. Median over the earlier default: {median(over_default):.2f}."
    )
    if picture is not None:
        draw(found, picture)


def draw(found: Sequence[tuple[str, int | str, dict[str, float], dict[str, Any]]], path: Path) -> None:
    """Draw gain against load, a panel for each model."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    names = list(dict.fromkeys(name for name, *_ in found))
    with rc_context({"font.size": 9, "svg.hashsalt": "setblock", "svg.fonttype": "none"}):
        figure = Figure(figsize=(2.6 * len(names) + 0.6, 2.9), layout="constrained")
        panels = figure.subplots(1, len(names), squeeze=False)[0]
        for name, axes in zip(names, panels, strict=True):
            cells = [(int(load), ratios) for each, load, ratios, _ in found if each == name and load != "batch"]
            for way, colour in ((ADAPTIVE, "black"), ("4", "#56B4E9"), ("8", "#0072B2"), ("16", "#D55E00")):
                label = way if way == ADAPTIVE else f"k = {way}"
                axes.plot(
                    *zip(*((load, ratios[way]) for load, ratios in sorted(cells)), strict=True),
                    "o-",
                    ms=3,
                    color=colour,
                    label=label,
                )
            axes.axhline(1, color="grey", linewidth=0.8)
            axes.set(title=name, xscale="log", xlabel="requests at once", ylim=(0, None))
            axes.set_xticks([load for load, _ in sorted(cells)], [str(load) for load, _ in sorted(cells)])
            axes.minorticks_off()
        panels[0].set_ylabel("tokens per second, over plain")
        panels[0].legend(fontsize=7)
        figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
