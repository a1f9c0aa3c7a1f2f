"""Fill the tables of docs/performance.md from the files in benchmarks/results/, and draw its picture.

    python docs/performance_tables.py

A table stands between `<!-- NAME -->` and `<!-- end of NAME -->`. Where its file is not there, the place says by which
command, and in about how many minutes, it can be made. `tests/test_docs.py` checks that the page shows what this writes.
"""

import json
import re
import runpy
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "growth.png"
COMMANDS = {each.result: each for each in runpy.run_path(str(ROOT / "benchmarks" / "all.py"))["COMMANDS"]}
Json = dict[str, Any]


def filled(page: str) -> str:
    """Return the page with what the files say in its tables."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n\n{content_of(name)}\n\n<!-- end of {name} -->"

    return re.sub(r"<!-- (?P<name>[\w ]+) -->\n.*?<!-- end of (?P=name) -->", replaced, page, flags=re.DOTALL)


def content_of(name: str) -> str:
    """Return the content of one place."""
    result, _, stage = name.partition(" ")
    found = read(result)
    if found is None:
        return not_measured(result, stage)
    if stage:  # of the stages for GPUs
        pieces = {key: piece for key, piece in found["stages"].get(stage, {}).items() if "error" not in piece}
        if not pieces:
            return not_measured(result, stage)
        return f"{origin(found)}\n\n{GPU_TABLES[stage](pieces)}"
    text = f"{origin(found)}\n\n{TABLES[found['benchmark']](found)}"
    return f"{text}\n\n![Speed-up over batches and lengths]({PICTURE.name})" if result == "growth_batch" else text


def read(result: str) -> Json | None:
    """Return a file of results, unless it is a miniature's."""
    path = RESULTS / f"{result}.json"
    if not path.exists():
        return None
    found: Json = json.loads(path.read_text())
    if found["quick"]:
        raise SystemExit(f"{path} is of a run with --quick, which measures nothing")
    return found


def not_measured(result: str, stage: str = "") -> str:
    """Return how to get what is missing."""
    out = f"--out benchmarks/results/{result}.json"
    if result == "gpu":
        return f"*Not measured yet:* `python benchmarks/gpu.py --stages {stage} {out}`, on a GPU."
    command = COMMANDS[result]
    arguments = " ".join([f"benchmarks/{command.program}.py", shlex.join(command.arguments)]).strip()
    return f"*Not measured yet:* `python {arguments} {out}`, about {command.minutes} minutes."


def origin(found: Json) -> str:
    """Return where figures come from."""
    where = found["gpu"] or f"{found['cpu']}, {found['threads']} threads"
    versions = f"PyTorch {found['torch']}, Transformers {found['transformers']}"
    return f"{where}; {versions}; {found['date'][:10]}; `{found['command']}`"


def passes_table(found: Json) -> str:
    """Return a table with a row for each pass."""
    rows = []
    for variant, each in found["variants"].items():
        for name, row in each["passes"].items():
            one = each["passes"]["one token"]["roofline"]
            rows.append(
                [
                    *(variant, name, spread(row["library"], 1e3), f"{row['library_over_one_token']:.2f}"),
                    *(spread(row["model"], 1e3), f"{row['model_over_one_token']:.2f}"),
                    *(f"{1e3 * row['roofline']:.2f}", f"{row['roofline'] / one:.2f}"),
                    f"{row['roofline'] / row['model']['median']:.0%}",
                ]
            )
    title = f"{found['parameters'] / 1e6:.0f}M random weights, batch {found['batch']}, {found['kv_length']:,} cached positions."
    columns = ["weights", "pass", "as decoding runs it, ms", "x", "the model alone, ms", "x", "roofline, ms", "x"]
    return f"{title}\n\n{markdown([*columns, 'of its speed'], rows)}"


def side_by_side_table(found: Json) -> str:
    """Return a table with a row for each contender."""
    return "\n\n".join(subject_table(subject) for subject in found["subjects"].values())


def subject_table(subject: Json) -> str:
    """Return a table of all contenders on one model."""
    graded = any("right_answers" in row for row in subject["contenders"].values())
    split = any("after_prefill_over_ours_plain" in row for row in subject["contenders"].values())
    rows = []
    for name, row in subject["contenders"].items():
        cells = [
            *(
                name,
                f"{row['tokens_per_second']:.1f}",
                spread(row["over_transformers"]),
                spread(row["over_ours_plain"]),
            ),
            *(
                [spread(row["after_prefill_over_ours_plain"])]
                if "after_prefill_over_ours_plain" in row
                else [""] * split
            ),
            f"{row['predicted_speedup']:.2f}" if "predicted_speedup" in row else "",
            f"{row['nfe_speedup']:.2f}" if row["nfe_speedup"] else "",
            f"{row['same_as_plain']:.1%}",
        ]
        rows.append([*cells, f"{row['right_answers']:.1%}"] if graded else cells)
    after = ["after the prefill"] * split
    columns = ["", "tokens/s", "over Transformers", "over ours, plain", *after, "eq. 16", "in passes", "same text"]
    what = (
        f"{subject['problems']} held-out problems"
        if graded
        else f"{subject['tokens']} tokens after {subject['prompt']}"
    )
    draft = f", draft model {subject['draft'] / 1e6:.1f}M" if subject.get("draft") else ""
    stored = f"{subject['dtype']}{', ours prepacked' if subject.get('prepacked') else ''}"
    title = f"{subject['parameters'] / 1e6:.1f}M parameters, {stored}; {what}{draft}; {subject['rounds']} rounds."
    return f"{title}\n\n{markdown([*columns, 'right'] if graded else columns, rows)}"


def structured_table(found: Json) -> str:
    """Return a table with a row for each method."""
    rows = [
        [
            *(f"`{method}`", f"{row['tokens']:.0f}", f"{row['passes']:.0f}", f"{row['passes_without']:.0f}"),
            *(f"{row['seconds']:.2f}", f"{row['seconds_without']:.2f}", f"{row['grammar_share']:.1%}"),
        ]
        for method, row in found["methods"].items()
    ]
    columns = [
        "method",
        "tokens",
        "passes with a schema",
        "without",
        "seconds with",
        "without",
        "the grammar's share of them",
    ]
    return f"Means of {found['answers']} answers of {found['model']}.\n\n{markdown(columns, rows)}"


def growth_table(found: Json) -> str:
    """Return a table with a row for each cell."""
    title = f"{found['parameters'] / 1e6:.0f}M random weights, {found['dtype']}, block size {found['block_size']}."
    return f"{title}\n\n{cells_table(found['cells'])}\n\n{ends(found['cells'])}"


def ends(cells: Json) -> str:
    """Return up to which of the batches that were measured blocks are faster, at each length."""
    lines = []
    for label, line in lines_of(cells, "batch", "kv_length"):
        gains = {
            name: max((batch for batch, gain in zip(line["x"], line[name], strict=True) if gain > 1), default=None)
            for name in ("measured", "roofline")
        }
        told = ", ".join(f"{name}: {batch or 'none'}" for name, batch in gains.items())
        lines.append(f"- {label}: {told}")
    return "The largest batch tried at which blocks are faster, in the median:\n\n" + "\n".join(lines)


def cells_table(cells: Json) -> str:
    """Return a table with a row for each cell and way."""
    rows = []
    for each in cells.values():
        at = [str(each["batch"]), f"{each['kv_length']:,}"]
        if "left_out" in each:
            rows.append([*at, each["left_out"], "", "", "", "", ""])
        for way, row in each.get("ways", {}).items():
            share = row["predicted_seconds_per_token"] / row["seconds_per_token"]["median"]
            rows.append(
                [
                    *at,
                    way,
                    spread(row["seconds_per_token"], 1e3),
                    spread(row["over_transformers"]),
                    spread(row["over_ours_plain"]),
                    f"{row['predicted_over_plain']:.2f}",
                    f"{share:.0%}",
                ]
            )
    columns = ["batch", "cached", "", "ms per token", "over Transformers", "over ours, plain", "roofline says"]
    return markdown([*columns, "of its speed"], rows)


def local_table(found: Json) -> str:
    """Return a table with a row for each contender on each file."""
    rows = [
        [
            *(weights, name, f"{row['tokens_per_second']:.1f}", spread(row["over_llama_cpp"])),
            *("" if row["passes"] is None else str(row["passes"]), f"{row['same_as_llama_cpp']:.1%}"),
        ]
        for weights, file in found["types"].items()
        for name, row in file["contenders"].items()
    ]
    return markdown(["file", "", "tokens/s", "over llama.cpp", "passes", "same text"], rows)


def breakdown_table(found: Json) -> str:
    """Return a table of milliseconds, and waits."""
    title = f"{found['parameters'] / 1e6:.0f}M random weights, {found['dtype']}, vocabulary {found['vocabulary']:,}."
    return f"{title}\n\n{methods_table(found['methods'])}"


def methods_table(methods: Json) -> str:
    """Return a table with a column for each method."""
    each = list(methods.values())
    rows = [[part, *(f"{row['milliseconds'][part]:.3f}" for row in each)] for part in each[0]["milliseconds"]]
    rows.append(["all but the model", *(f"{row['loop_milliseconds']:.3f}" for row in each)])
    rows.append(["over the model", *(f"{row['loop_over_model']:.1%}" for row in each)])
    rows.append(["times the host waits", *(f"{sum(row['synchronisations'].values()):.2f}" for row in each)])
    return markdown(["ms of a pass", *methods], rows)


def prefill_table(found: Json) -> str:
    """Return a table with a row for each way and prompt."""
    rows = [
        [
            each["dtype"],
            f"{each['length']:,}",
            way,
            spread(row["seconds"]),
            f"{row['over_transformers']:.2f}",
            "yes" if row["same_token"] else "no",
        ]
        for each in found["lengths"].values()
        for way, row in each["ways"].items()
    ]
    return markdown(["type", "prompt", "way", "seconds", "over Transformers", "same token"], rows)


def training_table(found: Json) -> str:
    """Return a table with a row for each share of prompt tokens."""
    more = ("adapter_seconds", "adapter_ratio") if "adapter_ratio" in found["shares"][0] else ()
    rows = [
        [
            *(
                f"{found['rows']} x {found['row_length']:,}",
                found["attention"] or "default",
                f"{row['prompt_share']:.0%}",
            ),
            *(spread(row[name]) for name in ("ntp_seconds", "sbd_seconds", "ratio", *more)),
            *("" if peak is None else f"{peak / 2**30:.2f}" for peak in row["peak_bytes"].values()),
        ]
        for row in found["shares"]
    ]
    columns = ["rows", "attention", "prompt tokens", "plain step, s", "SBD step, s", "SBD / plain"]
    columns += ["adapter step, s", "adapter / plain"] if more else []
    return markdown([*columns, "plain, GiB", "SBD, GiB", *(["adapter, GiB"] if more else [])], rows)


def gpu_passes_table(pieces: Json) -> str:
    """Return a table with a row for each batch and length, with the measured and the predicted ratio of each block
    size."""
    rows = []
    for name, piece in pieces.items():
        one = piece["one token 1"]
        cells = [name, spread(one["model"], 1e3), f"{one['roofline'] / one['model']['median']:.0%}"]
        for key in piece:
            if key != "one token 1":
                measured = piece[key]["model"]["median"] / one["model"]["median"]
                cells.append(f"{measured:.2f}, {piece[key]['roofline'] / one['roofline']:.2f}")
        rows.append(cells)
    kinds = [key for key in next(iter(pieces.values())) if key != "one token 1"]
    return markdown(["", "one token, ms", "of the roofline", *(f"{key}: measured, roofline" for key in kinds)], rows)


def graphs_table(pieces: Json) -> str:
    """Return a table with a row for each pass, and a column for each way to launch it."""
    ways = list(next(iter(pieces.values()))["times"])
    rows = [[name, *(spread(piece["times"][way], 1e3) for way in ways)] for name, piece in pieces.items()]
    return markdown(["ms", *ways], rows)


def checks_table(pieces: Json) -> str:
    """Return a table with a row for each check."""
    rows = []
    for name, piece in pieces.items():
        if "left_out" in piece:
            rows.append([name, f"left out: {piece['left_out']}", ""])
        else:
            shown = {key: value for key, value in piece.items() if key != "passed"}
            rows.append([name, "passed" if piece["passed"] else "**failed**", f"`{json.dumps(shown)}`"])
    return markdown(["check", "", "figures"], rows)


def machine_table(pieces: Json) -> str:
    """Return a table of what simple kernels reach."""
    (piece,) = pieces.values()
    rows = []
    for name in ("reached", "roofline"):
        figures = piece[name]
        peak = figures["peaks"]["16"]
        rows.append([figures["name"], f"{figures['bandwidth'] / 1e9:,.0f}", f"{peak / 1e12:,.0f}"])
    return markdown(["", "GB/s", "TFLOPS, 16 bits"], rows)


TABLES: dict[str, Callable[[Json], str]] = {
    "passes": passes_table,
    "side_by_side": side_by_side_table,
    "local_models": local_table,
    "structured": structured_table,
    "growth": growth_table,
    "breakdown": breakdown_table,
    "prefill": prefill_table,
    "training_step": training_table,
}
GPU_TABLES: dict[str, Callable[[Json], str]] = {
    "machine": machine_table,
    "checks": checks_table,
    "breakdown": lambda pieces: "\n\n".join(f"{k}:\n\n{methods_table(v['methods'])}" for k, v in pieces.items()),
    "passes": gpu_passes_table,
    "graphs": graphs_table,
    "growth": cells_table,
    "side_by_side": lambda pieces: "\n\n".join(f"{k}: {subject_table(v)}" for k, v in pieces.items()),
    "training": lambda pieces: "\n\n".join(training_table(piece) for piece in pieces.values()),
    "recipe": lambda pieces: "\n\n".join(
        f"{name}:\n\n{subject_table({**piece, 'tokens': 128, 'prompt': 128})}"
        for name, piece in pieces.items()
        if "contenders" in piece
    ),
}


def spread(values: Json, scale: float = 1) -> str:
    """Return median and quartiles, with three digits."""
    median, lower, upper = (scale * values[name] for name in ("median", "lower_quartile", "upper_quartile"))
    digits = 0 if median >= 100 else 1 if median >= 10 else 2 if median >= 0.1 else 4
    return f"{median:.{digits}f} ({lower:.{digits}f} to {upper:.{digits}f})"


def markdown(columns: list[str], rows: list[list[str]]) -> str:
    """Return a table."""
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def draw(path: Path) -> bool:
    """Draw how the gain grows and ends: measured as points, the roofline as lines. Nothing where nothing was measured."""
    files = [found for found in (read(name) for name in ("growth_batch", "growth_kv")) if found is not None]
    if not files:
        return False
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.5 * len(files), 4), layout="constrained")
    for axes, found in zip(figure.subplots(1, len(files), squeeze=False)[0], files, strict=True):
        by_batch = (
            found["command"].count("--kv-lengths") == 0 or len({c["kv_length"] for c in found["cells"].values()}) == 1
        )
        across, other = ("batch", "kv_length") if by_batch else ("kv_length", "batch")
        for index, (label, line) in enumerate(lines_of(found["cells"], across, other)):
            colour = f"C{index}"
            axes.plot(line["x"], line["measured"], "o-", color=colour, label=label)
            axes.fill_between(line["x"], line["lower"], line["upper"], color=colour, alpha=0.2, linewidth=0)
            axes.plot(line["x"], line["roofline"], "--", color=colour, linewidth=0.8)
        axes.axhline(1, color="0.5", linewidth=0.8)
        axes.set_xscale("log", base=2)
        places = sorted({each[across] for each in found["cells"].values()})
        axes.set_xticks(places, [f"{place:,}" for place in places])
        axes.set(xlabel=across.replace("kv_length", "cached positions"), ylabel="speed-up over plain decoding")
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False, title="points: measured; dashed: roofline")
    figure.savefig(path, dpi=120)
    return True


def lines_of(cells: Json, across: str, other: str) -> Iterator[tuple[str, dict[str, list[float]]]]:
    """Yield what to draw: for each value of `other` and each way of ours, speed-ups over Transformers and over our
    plain decoding."""
    measured = [each for each in cells.values() if "ways" in each]
    for value in sorted({each[other] for each in measured}):
        here = sorted((each for each in measured if each[other] == value), key=lambda each: int(each[across]))
        for way in here[0]["ways"]:
            if not way.startswith("ours, NFE"):
                continue
            rows = [each["ways"][way] for each in here]
            for column, name in (("over_transformers", "Transformers"), ("over_ours_plain", "ours, plain")):
                line = {
                    "x": [each[across] for each in here],
                    "measured": [row[column]["median"] for row in rows],
                    "lower": [row[column]["lower_quartile"] for row in rows],
                    "upper": [row[column]["upper_quartile"] for row in rows],
                    "roofline": [row["predicted_over_plain"] for row in rows],
                }
                where = f"{value:,} cached" if other == "kv_length" else f"batch {value}"
                yield f"{way}, over {name}, {where}", line


def main() -> None:
    """Fill and draw."""
    PAGE.write_text(filled(PAGE.read_text()))
    drawn = draw(PICTURE)
    print(f"{PAGE.relative_to(ROOT)} filled{f', {PICTURE.relative_to(ROOT)} drawn' if drawn else ''}")


if __name__ == "__main__":
    main()
