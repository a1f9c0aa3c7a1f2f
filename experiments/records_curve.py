r"""Draw how passes saved and right fields grow with the messages that `smollm2-records` was trained on.

    setblock evaluate --model RUN --task tasks/extraction --split validation --limit 20 --batch-size 20 --dtype bfloat16 \
        --drafts fixed --json
    python experiments/records_curve.py

Each line of experiments/results/records_parts.jsonl is what the first command prints of one run, and the `messages` that it and
the runs before it were trained on. Prints a table and a line through the logarithm of the messages.
"""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "experiments" / "results" / "records_parts.jsonl"
PICTURE = ROOT / "docs" / "records_curve.png"
TICKS = (1_000, 2_000, 5_000, 10_000, 20_000)


def main() -> None:
    """Print, draw."""
    found = [json.loads(line) for line in RESULTS.read_text(encoding="utf-8").splitlines()]
    print("| messages | passes saved | right fields | right records |\n|---|---|---|---|")
    for each in found:
        scores = each["scores"]
        print(f"| {each['messages']:,} | {each['nfe_speedup']:.2f} | {scores['fields']:.0%} | {scores['record']:.0%} |")
    slope, start = fitted(found)
    print(
        f"\nEach doubling saves {slope * math.log(2):.2f} times the passes more; at 20,000: {start + slope * math.log(2e4):.1f}"
    )
    draw(found, slope, start)


def fitted(found: list[dict[str, Any]]) -> tuple[float, float]:
    """Return the slope and the start of a line through passes saved over the logarithm of the messages."""
    slope, start = np.polyfit(
        [math.log(each["messages"]) for each in found], [each["nfe_speedup"] for each in found], deg=1
    )
    return float(slope), float(start)


def draw(found: list[dict[str, Any]], slope: float, start: float) -> None:
    """Draw both curves over the messages."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    messages = [each["messages"] for each in found]
    figure, (passes, right) = plt.subplots(1, 2, figsize=(8, 3.2), layout="constrained")
    passes.plot(messages, [each["nfe_speedup"] for each in found], "o-")
    ahead = np.geomspace(messages[0], 20_000)
    passes.plot(ahead, start + slope * np.log(ahead), "--", color="C7", label="line through the logarithm")
    passes.set_ylabel("passes saved by exact, times")
    passes.legend()
    right.plot(messages, [100 * each["scores"]["fields"] for each in found], "o-", label="fields")
    right.plot(messages, [100 * each["scores"]["record"] for each in found], "o-", label="whole records")
    right.set_ylabel("right, %")
    right.set_ylim(0, 100)
    right.legend()
    for axis in (passes, right):
        axis.set_xscale("log")
        axis.set_xticks(TICKS, [f"{tick:,}" for tick in TICKS])
        axis.set_xticks([], minor=True)
        axis.set_xlabel("messages of training")
        axis.grid(alpha=0.3)
    right.set_xlim(passes.get_xlim())
    figure.savefig(PICTURE, dpi=150)
    plt.close(figure)


if __name__ == "__main__":
    main()
