"""Study whether a block may have gaps: the same messages by plain decoding and by many rules, all answers kept.

    python experiments/order_study.py --model models/smollm2-records --task tasks/extraction --split validation --limit 300 \
        --grid experiments/grids/order.yaml --out experiments/results/records.jsonl
    python experiments/order_study.py --out experiments/results/records.jsonl --report
    python experiments/order_study.py --report --out experiments/results/records.jsonl \
        --out experiments/results/orders.jsonl --picture docs/gaps.svg

Each line of the file is one message by one rule: the answer, its passes, and what is right. A run that was ended continues
where it stopped, and takes what is new in the grid. Messages are answered a few at a time by all rules, so every rule has the
same messages at any moment. Rows of one message share its prefill, which is not counted. The report compares each rule with
plain decoding, message by message, and counts what was wrong where plain decoding was right.
"""

import argparse
import json
import math
import random
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice
from pathlib import Path
from typing import Any, ClassVar

import torch

from setblock.data.tasks import ChatExample, Verdict, task_named
from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.text import encode_prompt
from setblock.decoding.samplers import SAMPLERS, BlockView, Selection, at_least_one
from setblock.decoding.settings.operating_point import NTP, at_point, label_of, point_to_json
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import Engine, Request
from setblock.engine.offline import answered, limits_for
from setblock.evaluation.sweeps.grid import points_of, read_grids
from setblock.model.loading.loading import load

TOGETHER, CONCURRENCY = 24, 48
RESAMPLES = 2_000


@dataclass(frozen=True)
class LeadingBound:
    """Bound the entropy of the leading positions as the paper does, with the largest left out of the sum."""

    name: ClassVar[str] = "leading-bound"
    gamma: float = 0.1

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        entropy = block.entropy.where(block.candidates, 0)
        bound = entropy.cumsum(dim=-1) - entropy.cummax(dim=-1).values
        within = (bound <= self.gamma).cumprod(dim=-1).bool()
        return Selection(within & block.candidates)


@dataclass(frozen=True)
class WholeBound:
    """Bound the entropy of the least doubtful positions, the largest among them included, gaps or not."""

    name: ClassVar[str] = "whole-bound"
    gamma: float = 0.1

    def select(self, block: BlockView) -> Selection:
        """See `setblock.decoding.samplers.base.Sampler`."""
        ordered, order = block.entropy.where(block.candidates, math.inf).sort(dim=-1, stable=True)
        within = ordered.cumsum(dim=-1) <= self.gamma
        chosen = torch.empty_like(within).scatter_(-1, order, within)
        return Selection(at_least_one(chosen, block, score=-block.entropy))


def main() -> None:
    """Answer what is missing, or report."""
    SAMPLERS[LeadingBound.name], SAMPLERS[WholeBound.name] = LeadingBound, WholeBound
    options = parse_options()
    if options.report:
        for path in options.out:
            print("\n".join(report_lines(read_lines(path))))
        if options.picture is not None:
            draw(options.out, options.picture)
    else:
        answer(options, options.out[0])


def answer(options: argparse.Namespace, out: Path) -> None:
    """Answer messages by all rules, and append a line for each to `out`."""
    torch.set_num_threads(1)
    model = load(options.model, dtype=torch.bfloat16)
    task = task_named(options.task)
    points = [NTP, *(point for path in options.grid for point in points_of(model, read_grids(path)))]
    examples = list(islice(task.examples(options.split, seed=options.seed), options.limit))
    done = {(line["number"], line["label"]) for line in read_lines(out)}
    shared = DecodingSettings(max_new_tokens=options.max_new_tokens, drafts="fixed")  # no clock decides on passes
    numbered = list(enumerate(examples))[options.skip :]
    out.parent.mkdir(parents=True, exist_ok=True)
    for first in range(0, len(numbered), TOGETHER):
        part = numbered[first : first + TOGETHER]
        # Plain decoding first: its prompts are then in the cache, for all other rules
        for stage in (points[:1], points[1:]):
            wanted = {
                f"{number}/{place}": (number, example, point)
                for number, example in part
                for place, point in enumerate(stage)
                if (number, label_of(point)) not in done
            }
            for line in lines_of(model, task, wanted, shared):
                with out.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line, ensure_ascii=False) + "\n")
        print(f"{part[-1][0] + 1} of {len(examples)}", flush=True)


_engines: list[Engine] = []


def lines_of(
    model: Any, task: Any, wanted: dict[str, tuple[int, ChatExample, DecodingSettings]], shared: DecodingSettings
) -> Iterator[dict[str, Any]]:
    """Yield a line for each request, in the order in which they end."""
    requests = [
        Request(name, encode_prompt(model.tokenizer, example.messages), at_point(point, shared))
        for name, (_, example, point) in wanted.items()
    ]
    if not requests:
        return
    if not _engines:
        _engines.append(Engine(model, limits_for(model, requests * CONCURRENCY, concurrency=CONCURRENCY)))
    for name, generation in answered(_engines[0], requests):
        number, example, point = wanted[name]
        yield line_of(number, example, point, generation, task.judge(example, generation.text))


def line_of(
    number: int, example: ChatExample, point: DecodingSettings, generation: Generation, verdict: Verdict
) -> dict[str, Any]:
    """Return what is kept of an answer."""
    return {
        "number": number,
        "wording": getattr(example, "wording", ""),
        "label": label_of(point),
        "point": point_to_json(point),
        "passes": generation.passes.block + generation.passes.commit,
        "tokens": generation.num_tokens,
        "right": verdict.right,
        "fields": round(verdict.scores["fields"], 4),
        "text": generation.text,
    }


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Return the lines of a file; none where there is none."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []


@dataclass(frozen=True)
class Row:
    """Hold a rule's figures, over the messages that it and plain decoding have.

    Attributes:
        right, fields, same: shares of messages: the record is right, its fields are, the text is plain decoding's.
        low, high: the 95% interval of how much the share of right records differs from plain decoding's.
        saved: how many times fewer passes.
    """

    label: str
    messages: int
    right: float
    difference: float
    low: float
    high: float
    fields: float
    saved: float
    same: float


def by_rule(lines: Sequence[dict[str, Any]]) -> dict[str, dict[int, dict[str, Any]]]:
    """Return the lines of each rule by the message's number."""
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for line in lines:
        found.setdefault(line["label"], {})[line["number"]] = line
    return found


def rows_of(lines: Sequence[dict[str, Any]]) -> Iterator[Row]:
    """Yield the figures of each rule."""
    rules = by_rule(lines)
    plain = rules[label_of(NTP)]
    for label, own in rules.items():
        numbers = sorted(own.keys() & plain.keys())
        ours, theirs = [own[each] for each in numbers], [plain[each] for each in numbers]
        differences = [int(one["right"]) - int(other["right"]) for one, other in zip(ours, theirs, strict=True)]
        low, high = interval(differences)
        yield Row(
            label=label,
            messages=len(numbers),
            right=mean([each["right"] for each in ours]),
            difference=mean(differences),
            low=low,
            high=high,
            fields=mean([each["fields"] for each in ours]),
            saved=sum(each["passes"] for each in theirs) / sum(each["passes"] for each in ours),
            same=mean([one["text"] == other["text"] for one, other in zip(ours, theirs, strict=True)]),
        )


def report_lines(lines: Sequence[dict[str, Any]]) -> Iterator[str]:
    """Yield a table of the rules, each over the messages that it has, and one of what was wrong."""
    yield "| rule | messages | records right | of plain decoding's, 95% interval | fields | passes saved | as plain |"
    yield "|---|---|---|---|---|---|---|"
    for row in rows_of(lines):
        yield (
            f"| {row.label} | {row.messages} | {row.right:.1%} | "
            f"{100 * row.difference:+.1f} points ({100 * row.low:+.1f} to {100 * row.high:+.1f}) | "
            f"{row.fields:.1%} | {row.saved:.2f} | {row.same:.1%} |"
        )
    rules = by_rule(lines)
    plain = rules[label_of(NTP)]
    yield ""
    yield f"| rule | {' | '.join(FAULTS)} |"
    yield f"|---|{'---|' * len(FAULTS)}"
    for label, own in rules.items():
        pairs = [(own[each]["text"], plain[each]["text"]) for each in own.keys() & plain.keys() if plain[each]["right"]]
        counts = Counter(fault for text, right in pairs for fault in faults_of(text, right))
        yield f"| {label} | {' | '.join(str(counts[each]) for each in FAULTS)} |"


def draw(paths: Sequence[Path], picture: Path) -> None:
    """Draw right records against passes saved, a panel for each file, with paired 95% intervals."""
    from matplotlib import rc_context
    from matplotlib.figure import Figure

    kinds = {"without gaps": ("o", "#0072B2"), "with gaps": ("s", "#D55E00"), "exact": ("D", "black")}
    with rc_context({"font.size": 9, "svg.hashsalt": "setblock", "svg.fonttype": "none"}):
        figure = Figure(figsize=(4.4 * len(paths), 3.4), layout="constrained")
        panels = figure.subplots(1, len(paths), squeeze=False)[0]
        for path, axes in zip(paths, panels, strict=True):
            rows = list(rows_of(read_lines(path)))
            plain = next(row for row in rows if row.label == label_of(NTP))
            axes.axhline(100 * plain.right, color="grey", linewidth=0.8)
            axes.annotate(
                "plain decoding", (1, 100 * plain.right), xytext=(0, 3), textcoords="offset points", fontsize=7
            )
            found = sorted((row for row in rows if row is not plain), key=lambda row: row.saved)
            for place, row in enumerate(found):
                kind = (
                    "exact" if row.label.startswith("exact") else "with gaps" if has_gaps(row.label) else "without gaps"
                )
                marker, colour = kinds[kind]
                at = row.saved, 100 * (plain.right + row.difference)
                bars = [[100 * (row.difference - row.low)], [100 * (row.high - row.difference)]]
                axes.errorbar(*at, bars, fmt=marker, ms=4, color=colour, elinewidth=0.8, label=kind)
                is_left = place % 2 == 0  # names of neighbours lie on different sides
                axes.annotate(
                    row.label.partition(",")[0],
                    at,
                    xytext=(-5 if is_left else 5, -9),
                    textcoords="offset points",
                    ha="right" if is_left else "left",
                    fontsize=6.5,
                )
            title = f"{path.stem}: {plain.messages} messages"
            axes.set(title=title, xlabel="times fewer passes", xlim=(0.9, 1.3 * max(row.saved for row in rows)))
        panels[0].set_ylabel("records right, %")
        handles = dict(zip(*reversed(panels[-1].get_legend_handles_labels()), strict=True))
        panels[-1].legend(handles.values(), handles.keys(), fontsize=7, loc="lower left")
        figure.savefig(picture, metadata={"Date": None})


def has_gaps(label: str) -> bool:
    """Return whether a rule of the study may reveal a token before those on its left."""
    without = ("entropy-prefix", "confident-prefix", "examples/samplers/confident_prefix.py", LeadingBound.name)
    return not label.startswith(without)


FAULTS = (
    "no JSON",
    "another key",
    "length of a number",
    "lost part",
    "repeated part",
    "wrong letters",
    "another value",
)


def faults_of(text: str, right: str) -> Iterator[str]:
    """Yield what is wrong with each field of an answer, compared with a right one."""
    wanted = leaves_of(json.loads(right))
    try:
        mine = leaves_of(json.loads(text))
    except ValueError:
        yield "no JSON"
        return
    yield from ("another key" for path in wanted.keys() ^ mine.keys())
    yield from (
        fault_of(mine[path], wanted[path]) for path in wanted.keys() & mine.keys() if mine[path] != wanted[path]
    )


def fault_of(value: str, right: str) -> str:
    """Return what is wrong with a value, as text."""
    if re.sub(r"\d", "", value) == re.sub(r"\d", "", right) and len(value) != len(right):
        return "length of a number"
    if is_subsequence(value, right):
        return "lost part"
    if is_subsequence(right, value):
        return "repeated part"
    return "wrong letters" if SequenceMatcher(None, value, right).ratio() > 0.6 else "another value"


def is_subsequence(short: str, long: str) -> bool:
    """Return whether leaving characters out of `long` gives `short`."""
    rest = iter(long)
    return all(each in rest for each in short)


def leaves_of(value: Any, path: str = "") -> dict[str, str]:
    """Return the fields of a record as text, those within lists and objects by their path."""
    parts = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if parts is None:
        return {path: value if isinstance(value, str) else json.dumps(value)}
    return {name: text for key, part in parts for name, text in leaves_of(part, f"{path}/{key}").items()}


def mean(values: Sequence[float]) -> float:
    """Return the mean of at least one value."""
    return sum(values) / len(values)


def interval(differences: Sequence[int]) -> tuple[float, float]:
    """Return the 95% interval of a mean of -1, 0 and 1, by the bootstrap over messages."""
    rng, counts = random.Random(0), Counter(differences)
    values, weights = list(counts), list(counts.values())
    means = sorted(mean(rng.choices(values, weights, k=len(differences))) for _ in range(RESAMPLES))
    return means[int(0.025 * len(means))], means[int(0.975 * len(means))]


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="models/smollm2-records")
    add("--task", default="tasks/extraction", help="with the score `fields`")
    add("--split", default="validation")
    add("--seed", type=int, default=0)
    add("--limit", type=int, default=300, help="messages")
    add("--skip", type=int, default=0, help="messages to leave out at the beginning")
    add("--max-new-tokens", type=int, default=320)
    add("--grid", type=Path, action="append", default=[], help="as of `setblock sweep --grid-file`; can be repeated")
    add("--out", type=Path, action="append", required=True, help="a JSON Lines file; with --report can be repeated")
    add("--report", action="store_true", help="print the table of each file, and answer nothing")
    add("--picture", type=Path, metavar="FILE", help="with --report: draw right records against passes saved")
    options = parser.parse_args()
    if len(options.out) > 1 and not options.report:
        parser.error("only --report takes more than one --out")
    return options


if __name__ == "__main__":
    main()
