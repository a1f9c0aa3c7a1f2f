"""Fill the README's tables of figures on real models, and its first figure, from files in benchmarks/results/.

    python benchmarks/all.py --only side_by_side_orders
    setblock evaluate --model MODEL --task TASK --batch-size 1 --json >> benchmarks/results/real_model.jsonl
    python docs/real_model_tables.py

The first table is of side_by_side_orders.json. Each line of real_model.jsonl is what `setblock evaluate --json` prints. The
second table has the lines of one request at a time, in the order of `TITLES`, where a new model needs a title.
`tests/test_docs.py` checks that the README shows what this writes.
"""

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "README.md"
RESULTS = ROOT / "benchmarks" / "results" / "real_model.jsonl"
ORDERS = RESULTS.with_name("side_by_side_orders.json")
PLACES = ("headline", "side by side", "real model")
PLACE = re.compile(rf"<!-- ({'|'.join(PLACES)}) -->\n.*?<!-- end of \1 -->", re.DOTALL)
Json = dict[str, Any]

TITLES = {
    "smollm2-records": "`smollm2-records`: fine-tuned in blocks",
    "smollm2": "`smollm2`: not trained for blocks, copied drafts",
}
"""The name or folder of a model -> what the table calls it."""

WAYS = {
    "ours, plain": "plain decoding (`ntp`)",
    "ours, exact": "**`exact`**, the default",
    "ours, blocks, gamma 0.1": "blocks without a check (`sbd`)",
    "Transformers generate": "Transformers' `generate`",
    "Transformers prompt lookup": "Transformers' prompt lookup",
    "llama.cpp": "llama.cpp, bf16",
    "llama.cpp, q8_0": "llama.cpp, 8-bit weights",
    "llama.cpp, q4_0": "llama.cpp, 4-bit weights",
}
"""A contender of `side_by_side.py` -> what the table calls it."""


def filled(page: str) -> str:
    """Return the page with its tables and its first figure."""
    orders = json.loads(ORDERS.read_text(encoding="utf-8"))["subjects"]["trained"]
    content = dict(zip(PLACES, (headline(orders), side_by_side(orders), table(results())), strict=True))
    return PLACE.sub(lambda place: f"<!-- {place[1]} -->\n\n{content[place[1]]}\n\n<!-- end of {place[1]} -->", page)


def results() -> list[Json]:
    """Return the results of one request at a time, for the second table."""
    lines = RESULTS.read_text(encoding="utf-8").splitlines()
    found = [each for each in map(json.loads, lines) if each["batch_size"] == 1]
    assert {each["method"] for each in found} == {"exact"}, "the table has no column for the method"
    return sorted(found, key=lambda each: list(TITLES).index(Path(each["model"]).name))


def headline(orders: Json) -> str:
    """Return the first figure in two sentences."""
    count, ways = orders["problems"], orders["contenders"]
    plain, exact = ways["ours, plain"], ways["ours, exact"]
    assert exact["same_as_ours_plain"] == 1, "the sentence says that all texts are the same"
    return (
        f"On one core of a CPU, SmolLM2-135M, fine-tuned in blocks, writes {count} messages of a shop as JSON records in "
        f"{exact['seconds']['median']:.0f} seconds instead of {plain['seconds']['median']:.0f}. That is "
        f"**{exact['over_ours_plain']['median']:.1f} times as fast**, in {exact['nfe_speedup']:.1f} times fewer forward "
        f"passes, with the same text in all {count}."
    )


def side_by_side(orders: Json) -> str:
    """Return a table with a row for each way to decode the same requests."""
    columns = ("", "seconds", "speed, and its 95% interval", "forward passes", "right records", "same text")
    lines = [columns, ("---",) * len(columns), *(way(name, orders["contenders"][name]) for name in WAYS)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def way(name: str, found: Json) -> tuple[str, ...]:
    """Return the row of a contender. Passes leave the prefill out."""
    low, high = found["over_ours_plain_interval"]
    return (
        WAYS[name],
        f"{found['seconds']['median']:.1f}",
        f"{found['over_ours_plain']['median']:.2f} ({low:.2f} to {high:.2f})",
        "" if found["passes"] is None else f"{found['passes']:,}",
        f"{found['right_answers']:.0%}",
        f"{found['same_as_ours_plain']:.0%}",
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
        TITLES[Path(found["model"]).name],
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
