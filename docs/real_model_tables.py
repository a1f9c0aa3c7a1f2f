"""Fill the README's table of figures on real models, and its first figure, from benchmarks/results/real_model.jsonl.

    setblock evaluate --model MODEL --task TASK --batch-size 1 --json >> benchmarks/results/real_model.jsonl
    python docs/real_model_tables.py

Each line of the file is what `setblock evaluate --json` prints. The table has the lines of one request at a time, in the
order of `TITLES`, where a new model needs a title. `tests/test_docs.py` checks that the README shows what this writes.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "real_model.jsonl"
PLACE = re.compile(r"<!-- (real model|headline) -->\n.*?<!-- end of \1 -->", re.DOTALL)
Json = dict[str, Any]

TITLES = {
    "smollm2-records": "`smollm2-records`: fine-tuned in blocks",
    "smollm2": "`smollm2`: not trained for blocks, copied drafts",
}
"""The name or folder of a model -> what the table calls it. The first one's figure is the README's first."""


def filled(page: str) -> str:
    """Return the page with its table and its first figure."""
    found = results()
    content = {"real model": table(found), "headline": headline(found[0])}
    return PLACE.sub(lambda place: f"<!-- {place[1]} -->\n\n{content[place[1]]}\n\n<!-- end of {place[1]} -->", page)


def results() -> list[Json]:
    """Return the results of one request at a time."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    found = [each for each in map(json.loads, lines) if each["batch_size"] == 1]
    assert {each["method"] for each in found} == {"exact"}, "the table has no column for the method"
    return sorted(found, key=lambda each: list(TITLES).index(each["model"]))


def headline(found: Json) -> str:
    """Return the first figure in two sentences."""
    count = found["num_examples"]
    assert found["task"] == "extraction", "the sentence is about messages"
    assert found["identical_to_ntp"] == 1, "the sentence says that all texts are the same"
    return (
        f"On one core of a CPU, SmolLM2-135M, fine-tuned in blocks, writes {count} messages as JSON records in "
        f"{found['seconds']:.0f} seconds instead of {found['ntp_seconds']:.0f}. That is "
        f"**{found['ntp_seconds'] / found['seconds']:.1f} times as fast**, in {found['nfe_speedup']:.1f} times fewer forward "
        f"passes, with the same text in all {count}."
    )


def table(found: list[Json]) -> str:
    """Return a table with a row for each result."""
    columns = ("model", "task", "seconds", "speed", "forward passes", "right answers", "same text")
    lines = [columns, ("---",) * len(columns), *map(row, found)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def row(found: Json) -> tuple[str, ...]:
    """Return one result, plain decoding's figure before the method's. Passes leave the prefill of each request out."""
    count = found["prefill_forwards"]
    return (
        TITLES[found["model"]],
        f"{found['task']}, {found['num_examples']} requests",
        f"{found['ntp_seconds']:.1f} → {found['seconds']:.1f}",
        f"{found['ntp_seconds'] / found['seconds']:.2f} times",
        f"{found['ntp_forwards'] - count:,} → {found['num_forwards'] - count:,}",
        "" if found["accuracy"] is None else f"{found['ntp_accuracy']:.0%} → {found['accuracy']:.0%}",
        f"{found['identical_to_ntp']:.0%}",
    )


def main() -> None:
    """Fill the table."""
    PAGE.write_text(filled(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    print(f"{PAGE.relative_to(ROOT)} filled")


if __name__ == "__main__":
    main()
