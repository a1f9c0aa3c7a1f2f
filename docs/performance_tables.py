"""Fill the tables of docs/performance.md from the files in benchmarks/results/, and draw its picture.

    python docs/performance_tables.py

A table stands between `<!-- NAME -->` and `<!-- end of NAME -->`. Where its file is not there, the place says by which
command, and in about how many minutes, it can be made. `tests/test_docs.py` checks that the page shows what this writes.
"""

import json
import re
import runpy
import shlex
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "performance.md"
RESULTS = ROOT / "benchmarks" / "results"
PICTURE = ROOT / "docs" / "growth.png"
COMMANDS = {each.result: each for each in runpy.run_path(str(ROOT / "benchmarks" / "all.py"))["COMMANDS"]}
tables = SimpleNamespace(**runpy.run_path(str(ROOT / "benchmarks" / "measuring" / "tables.py")))
Json = dict[str, Any]


def filled(page: str) -> str:
    """Return the page with what the files say in its tables."""

    def replaced(match: re.Match[str]) -> str:
        name = match["name"]
        return f"<!-- {name} -->\n\n{content_of(name)}\n\n<!-- end of {name} -->"

    return re.sub(r"<!-- (?P<name>\w+) -->\n.*?<!-- end of (?P=name) -->", replaced, page, flags=re.DOTALL)


def content_of(result: str) -> str:
    """Return the content of one place."""
    found = read(result)
    if found is None:
        return not_measured(result)
    table = tables.gpu_table if result == "gpu" else tables.TABLES[found["benchmark"]]
    text = f"{tables.origin(found)}\n\n{table(found)}"
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


def not_measured(result: str) -> str:
    """Return how to get what is missing."""
    out = f"--out benchmarks/results/{result}.json"
    if result == "gpu":
        return f"*Not measured yet:* `python benchmarks/gpu.py {out}`, on a GPU."
    command = COMMANDS[result]
    arguments = " ".join([f"benchmarks/{command.program}.py", shlex.join(command.arguments)]).strip()
    return f"*Not measured yet:* `python {arguments} {out}`, about {command.minutes} minutes."


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
    PAGE.write_text(filled(PAGE.read_text()))
    drawn = draw(PICTURE)
    print(f"{PAGE.relative_to(ROOT)} filled{f', {PICTURE.relative_to(ROOT)} drawn' if drawn else ''}")


if __name__ == "__main__":
    main()
