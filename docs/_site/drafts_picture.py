"""Draw what adaptive drafts gain against load, on costs that the roofline predicts for a GPU: the picture of docs/drafts.md.

    python docs/_site/drafts_picture.py

Nothing here is measured. The requests are simulated: each drafted token is right with probability 0.85 if those before it are,
and a pass costs what the roofline says of Llama-3.1-8B on an H100. What is drafted is decided by the library, which learns
these costs from a simulated clock.
"""

import random
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure

from setblock.decoding.drafts.draft_length import DraftLength, DraftLengths, PassShape, RowDraft
from setblock.decoding.drafts.shorten import draft_lengths_of
from setblock.roofline.hardware import HARDWARE
from setblock.roofline.prediction import Precision, Prediction, block_speedup
from setblock.roofline.shape import PRESETS

RIGHT, CACHED = 0.85, 512  # how often a token is right; positions of each request
SIZES, LARGEST = (4, 8, 16), 16
LOADS = tuple(1 << power for power in range(11))
LEARNING, PASSES = 400, 400  # of which the first do not count
PREDICTION = Prediction(shape=PRESETS["llama-3.1-8b"], hardware=HARDWARE["h100"], precision=Precision.of("bfloat16"))

Choose = Callable[[DraftLengths, Sequence[RowDraft]], list[DraftLength]]


def cost(tokens: int, rows: int) -> float:
    """Return the seconds of a pass by the roofline. Weights are read once a pass, and the cache once a row."""
    of_rows = PREDICTION.seconds(1, batch=rows, kv_length=CACHED) - PREDICTION.seconds(1, batch=rows, kv_length=0)
    return PREDICTION.seconds(1, batch=tokens, kv_length=0) + of_rows


def simulated(rows: int, choose: Choose, *, seed: int = 0) -> tuple[float, float]:
    """Return how many times as many tokens a second as plain decoding `rows` requests get, and the tokens of each of a pass."""
    rng, lengths = random.Random(seed), draft_lengths_of(SimpleNamespace(device=torch.device("cuda")))
    chances = [RIGHT**place for place in range(1, LARGEST)]
    drafts = [0] * rows
    gained = fed = 0
    seconds = 0.0
    for number in range(LEARNING + PASSES):
        if number == LEARNING:
            gained, fed, seconds = 0, 0, 0.0
        chosen = choose(lengths, [RowDraft(chances[:length], chances, LARGEST) for length in drafts])
        tokens = rows + sum(each.drafted + each.fed for each in chosen)
        lengths.times("simulated", rows).update(tokens, taken := cost(tokens, rows))
        seconds, fed = seconds + taken, fed + tokens
        for row, each in enumerate(chosen):
            right = next((place for place in range(each.drafted) if rng.random() >= RIGHT), each.drafted)
            gained += 1 + right
            drafts[row] = max(0, each.fed - 1) if right == each.drafted else 0
    return gained / seconds * cost(rows, rows) / rows, fed / PASSES / rows


def adaptive(lengths: DraftLengths, rows: Sequence[RowDraft]) -> list[DraftLength]:
    """Choose as the library does."""
    return lengths.choose(rows, PassShape("simulated", len(rows)))


def fixed(size: int) -> Choose:
    """Return what always feeds a block of `size` tokens."""
    return lambda lengths, rows: [DraftLength(len(row.reached), size) for row in rows]


def main() -> None:
    """Draw the picture."""
    found = {load: simulated(load, adaptive) for load in LOADS}
    with rc_context({"font.size": 9, "svg.hashsalt": "setblock", "svg.fonttype": "none"}):
        figure = Figure(figsize=(8.5, 3.4), layout="constrained")
        gain, size = figure.subplots(1, 2)
        gain.plot(LOADS, [found[load][0] for load in LOADS], color="black", marker="o", label="adaptive", zorder=3)
        for block, colour in zip(SIZES, ("#56B4E9", "#0072B2", "#D55E00"), strict=True):
            gain.plot(
                LOADS, [simulated(load, fixed(block))[0] for load in LOADS], color=colour, label=f"fixed, k = {block}"
            )
            passes = sum(RIGHT**place for place in range(block))
            predicted = [
                block_speedup(PREDICTION, passes, block_size=block, batch=load, kv_length=CACHED) for load in LOADS
            ]
            gain.plot(LOADS, predicted, color=colour, linestyle=":", linewidth=1)
        gain.axhline(1, color="grey", linewidth=0.8)
        gain.set(
            xscale="log", xlabel="requests at once", ylabel="tokens per second, over plain decoding", ylim=(0, None)
        )
        gain.legend(title="dotted: eq. 16, all else right", fontsize=8, title_fontsize=8)
        size.plot(LOADS, [found[load][1] for load in LOADS], color="black", marker="o")
        size.axhline(1, color="grey", linewidth=0.8)
        size.set(xscale="log", xlabel="requests at once", ylabel="tokens of a request in a pass", ylim=(0, None))
        for axes in (gain, size):
            axes.set_xticks(LOADS[::2], [str(load) for load in LOADS[::2]])
            axes.minorticks_off()
        figure.savefig(Path(__file__).parent.parent / "drafts.svg", metadata={"Date": None})
    for load, (speed, tokens) in found.items():
        print(f"{load:5d} requests: {speed:.2f} times plain decoding, {tokens:.1f} tokens of each in a pass")


if __name__ == "__main__":
    main()
