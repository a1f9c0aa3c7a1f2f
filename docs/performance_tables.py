"""Fill the tables of the README, docs/performance.md and docs/evidence/ from files in benchmarks/results/, and draw a picture.

    python docs/performance_tables.py

A table stands between `<!-- NAME -->` and `<!-- end of NAME -->`. `SUMMARIES` has the short tables that answer a reader's
question; any other name is that of a file, whose whole table it is. Where that file is not there, the place says by which
command, and in about how many minutes, it can be made. `tests/test_docs.py` checks that the pages show what this writes.
"""

import json
import re
import runpy
import shlex
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "performance.md", *sorted((ROOT / "docs" / "evidence").glob("*.md")))
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "growth.png"
COMMANDS = {each.result: each for each in runpy.run_path(str(ROOT / "benchmarks" / "all.py"))["COMMANDS"]}
tables = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "measuring" / "tables.py")))
WIDTH = 76  # of a command, which should not need to be scrolled
Json = dict[str, Any]

CONTENDERS = {
    "ours, plain": "plain decoding (`ntp`)",
    "ours, exact": "**`exact`**, the default",
    "ours, blocks, gamma 0.1": "blocks without a check (`sbd`)",
    "Transformers generate": "Transformers' `generate`",
    "Transformers prompt lookup": "Transformers' prompt lookup",
    "llama.cpp": "llama.cpp, bf16",
    "llama.cpp, q8_0": "llama.cpp, 8-bit weights",
    "llama.cpp, q4_0": "llama.cpp, 4-bit weights",
}
"""A contender of `side_by_side.py` -> what short tables call it, in their order."""

MODELS = {
    "smollm2-records": "`smollm2-records`, fine-tuned",
    "smollm2": "`smollm2`, not fine-tuned",
}
"""The name or folder of a model in real_model.jsonl -> what the table calls it, in its order."""


def filled(page: str) -> str:
    """Return the page with what the files say in its tables."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n\n{content_of(name)}\n\n<!-- end of {name} -->"

    return re.sub(r"<!-- (?P<name>\w+) -->\n.*?<!-- end of (?P=name) -->", replaced, page, flags=re.DOTALL)


def content_of(name: str) -> str:
    """Return the content of one place."""
    if name in SUMMARIES:
        return SUMMARIES[name]()
    found = read(name)
    if found is None:
        return not_measured(name)
    table = tables.gpu_table if name == "gpu" else tables.TABLES[found["benchmark"]]
    return with_command(table(found), found)


def read(result: str) -> Json | None:
    """Return a file of results, unless it is a miniature's."""
    path = RESULTS / f"{result}.json"
    if not path.exists():
        return None
    found: Json = json.loads(path.read_text())
    if found["quick"]:
        raise SystemExit(f"{path} is of a run with --quick, which measures nothing")
    return found


def not_measured(result: str) -> str:
    """Return how to get what is missing."""
    out = f"--out benchmarks/results/{result}.json"
    if result == "gpu":
        return f"*Not measured yet:* `python benchmarks/gpu.py {out}`, on a GPU."
    command = COMMANDS[result]
    arguments = " ".join([f"benchmarks/{command.program}.py", shlex.join(command.arguments)]).strip()
    return f"*Not measured yet:* `python {arguments} {out}`, about {command.minutes} minutes."


def lines_of(file: str) -> list[Json]:
    """Return the objects in a file of JSON lines."""
    return [json.loads(line) for line in (RESULTS / file).read_text(encoding="utf-8").splitlines()]


def summary_of(result: str, table: Callable[[Json], str]) -> Callable[[], str]:
    """Return what makes a short table of a result."""

    def summary() -> str:
        found = read(result)
        return not_measured(result) if found is None else with_command(table(found), found)

    return summary


def with_command(table: str, found: Json) -> str:
    """Return a table, what it was measured on, and its command."""
    program, *options = found["command"].split(" --")
    lines = [program]
    for option in options:
        if len(lines[-1]) + len(option) > WIDTH:
            lines.append("   ")
        lines[-1] += f" --{option}"
    command = " \\\n".join(lines)
    return f"{table}\n\n{tables.machine(found)}:\n\n```bash\n{command}\n```"


def first_figures() -> str:
    """Return the README's table: a row for each setting that its first screen speaks of."""
    shop = read("side_by_side_orders")
    assert shop is not None
    trained = shop["subjects"]["trained"]
    exact = trained["contenders"]["ours, exact"]
    cpu, gpu = lines_of("load.jsonl"), lines_of("load_gpu.jsonl")

    def gains(file: list[Json], name: str, subject: str, *loads: int) -> str:
        return f"{name}: {', '.join(f'**{gain(cell(file, subject, load)):.1f}**' for load in loads)}"

    def same(file: list[Json], *cells: tuple[str, int]) -> str:
        ways = [found["ways"]["adaptive"] for each in cells for found in cell(file, *each)]
        return f"{sum(way['same'] for way in ways):,} of {sum(way['answers'] for way in ways):,}"

    english, code, records = "smollm2, English", "smollm2, HumanEval", "smollm2-records"
    rows = [
        [
            "fine-tuned in blocks, on a shop's mail",
            f"one core, {shop['cpu']}, {shop['date'][:10]}",
            "1",
            f"**{exact['over_ours_plain']['median']:.1f}**",
            f"{round(exact['same_as_ours_plain'] * trained['problems'])} of {trained['problems']}",
        ],
        [
            "not fine-tuned",
            where_and_when(cpu),
            "1",
            f"{gains(cpu, 'HumanEval', code, 1)}<br>{gains(cpu, 'everyday English', english, 1)}",
            same(cpu, (english, 1), (code, 1)),
        ],
        [
            "fine-tuned in blocks, on messages",
            where_and_when(cpu),
            "32",
            f"**{gain(cell(cpu, records, 32)):.1f}**",
            same(cpu, (records, 32)),
        ],
        [
            "the same",
            where_and_when(gpu),
            "8, 32",
            ", ".join(f"**{gain(cell(gpu, records, load)):.1f}**" for load in (8, 32)),
            same(gpu, (records, 8), (records, 32)),
        ],
    ]
    columns = ["SmolLM2-135M", "measured on", "requests at once", "times as fast", "same text"]
    return str(tables.markdown(columns, rows))


def where_and_when(rounds: list[Json]) -> str:
    """Return what a file of `benchmarks/load.py` was measured on, and when."""
    last = rounds[-1]
    where = last["gpu"] or f"{'two' if last['threads'] == 2 else last['threads']} cores, {last['cpu']}"
    return f"{where}, {last['date'][:10]}"


def cell(rounds: list[Json], subject: str, load: int) -> list[Json]:
    """Return the rounds of one subject and one number of requests at once."""
    return [each for each in rounds if (each["subject"], each["load"]) == (subject, load)]


def gain(rounds: list[Json], way: str = "adaptive") -> float:
    """Return the median over rounds of a way's tokens a second over plain decoding's."""
    speeds = [{name: each["tokens"] / each["seconds"] for name, each in found["ways"].items()} for found in rounds]
    return float(median(speed[way] / speed["plain"] for speed in speeds))


def contenders(found: Json) -> str:
    """Return a table with a row for each way to decode the same requests. Passes leave the prefill out."""
    (subject,) = found["subjects"].values()
    rows = []
    for name, shown in CONTENDERS.items():
        row = subject["contenders"][name]
        low, high = row["over_ours_plain_interval"]
        rows.append(
            [
                *(shown, f"{row['seconds']['median']:.1f}"),
                f"{row['over_ours_plain']['median']:.2f} ({low:.2f} to {high:.2f})",
                "" if row["passes"] is None else f"{row['passes']:,}",
                *(f"{row[share]:.0%}" for share in ("right_answers", "same_as_ours_plain")),
            ]
        )
    return str(tables.markdown(["", "seconds", "times as fast", "forward passes", "right", "same text"], rows))


def other_tasks() -> str:
    """Return a table of the results of one request at a time in real_model.jsonl, plain decoding's figure first."""
    found = [each for each in lines_of("real_model.jsonl") if each["batch_size"] == 1]
    assert {(each["method"], each["identical_to_ntp"]) for each in found} == {("exact", 1)}, (
        "the page says so of all rows"
    )
    rows = []
    for each in sorted(found, key=lambda each: list(MODELS).index(Path(each["model"]).name)):
        count = each["prefill_forwards"]
        rows.append(
            [
                MODELS[Path(each["model"]).name],
                f"{each['task']}, {each['num_examples']} requests",
                f"{each['ntp_seconds']:.1f} → {each['seconds']:.1f}",
                f"{each['ntp_seconds'] / each['seconds']:.2f}",
                f"{each['ntp_forwards'] - count:,} → {each['num_forwards'] - count:,}",
                "" if each["accuracy"] is None else f"{each['ntp_accuracy']:.0%} → {each['accuracy']:.0%}",
            ]
        )
    columns = ["model", "task", "seconds", "times as fast", "forward passes", "right"]
    return str(tables.markdown(columns, rows))


def pass_ratios(found: Json) -> str:
    """Return a table with a row for each type of weights."""
    kinds = ("block 8", "block 16", "fused 16")
    rows = [
        [
            weights,
            f"{each['passes']['one token']['library']['median'] * 1e3:.1f}",
            *(f"{each['passes'][kind]['library_over_one_token']:.2f}" for kind in kinds),
        ]
        for weights, each in found["variants"].items()
    ]
    title = f"{found['parameters'] / 1e6:.0f}M random weights, one request, {found['kv_length']:,} cached positions."
    columns = ["weights", "one token, ms", *(f"{kind}, times that" for kind in kinds)]
    return f"{title}\n\n{tables.markdown(columns, rows)}"


def batches(found: Json) -> str:
    """Return a table with a row for each number of requests."""
    rows = []
    for each in found["cells"].values():
        ours = each["ways"]["ours, NFE 4"]
        speeds = (ours[over]["median"] for over in ("over_ours_plain", "over_transformers"))
        rows.append([str(each["batch"]), *(f"{speed:.2f}" for speed in speeds), f"{ours['predicted_over_plain']:.2f}"])
    model = f"{found['parameters'] / 1e6:.0f}M random weights, {found['dtype']}"
    title = f"{model}, block size {found['block_size']}, 4 times fewer passes."
    columns = ["requests at once", "over our plain decoding", "over Transformers' `generate`", "the roofline says"]
    return f"{title}\n\n{tables.markdown(columns, rows)}"


def gpu_load() -> str:
    """Return a table of trained models under load on a GPU."""
    found = lines_of("load_gpu.jsonl")
    about = found[0]
    rows = []
    for each in sorted(found, key=lambda each: (GPU_SUBJECTS.index(each["subject"]), each["load"])):
        plain = each["ways"]["plain"]
        speeds = (f"{gain([each], way):.2f}" for way in ("adaptive", "4", "16"))
        rows.append(
            [
                *(each["subject"], str(each["load"]), str(plain["answers"])),
                *(f"{plain['tokens'] / plain['seconds']:,.0f}", *speeds),
            ]
        )
    columns = ["model", "at once", "requests", "plain, tokens a second", "as it decides", "k = 4", "k = 16"]
    return with_command(tables.markdown(columns, rows), about)


GPU_SUBJECTS = ("smollm2, English", "smollm2-records", "smollm2, HumanEval", "bundled")

SUMMARIES: dict[str, Callable[[], str]] = {
    "first_figures": first_figures,
    "shop": summary_of("side_by_side_orders", contenders),
    "other_tasks": other_tasks,
    "pass_ratios": summary_of("passes", pass_ratios),
    "batches": summary_of("growth_batch", batches),
    "steps": summary_of("training_step", tables.training_table),
    "gpu_load": gpu_load,
}
"""A place -> what makes its short table."""


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
        for index, (label, line) in enumerate(tables.lines_of(found["cells"], across, other)):
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


def main() -> None:
    """Fill and draw."""
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8")), encoding="utf-8")
    drawn = draw(PICTURE)
    print(f"{len(PAGES)} pages filled{f', {PICTURE.relative_to(ROOT)} drawn' if drawn else ''}")


if __name__ == "__main__":
    main()
