"""Fill the README's table of figures on real models from benchmarks/results/real_model.jsonl.

    setblock evaluate --model MODEL --task TASK --batch-size 1 --json >> benchmarks/results/real_model.jsonl
    python docs/real_model_tables.py

Each line of the file is what `setblock evaluate --json` prints. The table has the lines of one request at a time. A new model
needs a title in `TITLES`. `tests/test_docs.py` checks that the README shows what this writes.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "real_model.jsonl"
PLACE = re.compile(r"(?<=<!-- real model -->\n).*?(?=<!-- end of real model -->)", re.DOTALL)
Json = dict[str, Any]

TITLES = {
    "smollm2": "SmolLM2-135M-Instruct, not trained for blocks: copied drafts",
    "smollm2-records": "`smollm2-records`: the same, fine-tuned in blocks in eleven hours on one core",
}
"""The name or folder of a model -> what the table calls it."""


def filled(page: str) -> str:
    """Return the page with its table."""
    return PLACE.sub(lambda _: f"\n{table(results())}\n\n", page)


def results() -> list[Json]:
    """Return the results of one request at a time."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    return [found for found in map(json.loads, lines) if found["batch_size"] == 1]


def table(found: list[Json]) -> str:
    """Return a table with a row for each result."""
    columns = ("model", "task", "method", "seconds", "speed", "forward passes", "right answers", "same text as plain")
    lines = [columns, ("---",) * len(columns), *map(row, found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(found: Json) -> tuple[str, ...]:
    """Return one result, plain decoding's figure before the method's. Passes leave the prefill of each request out."""
    count = found["prefill_forwards"]
    return (
        TITLES[found["model"]],
        f"{found['task']}, {found['num_examples']} requests",
        f"`{found['method']}`",
        f"{found['ntp_seconds']:.1f} → {found['seconds']:.1f}",
        f"{found['ntp_seconds'] / found['seconds']:.2f} times",
        f"{found['ntp_forwards'] - count:,} → {found['num_forwards'] - count:,}",
        "" if found["accuracy"] is None else f"{found['ntp_accuracy']:.1%} → {found['accuracy']:.1%}",
        f"{found['identical_to_ntp']:.1%}",
    )


def main() -> None:
    """Fill the table."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} filled")


if __name__ == "__main__":
    main()
