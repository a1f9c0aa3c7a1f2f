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

from setblock.decoding.drafts.control import DraftControl, RowDrafts, control_of
from setblock.decoding.drafts.costs import TimedPass, unevenness
from setblock.decoding.drafts.gains import DraftChoice, Prospects
from setblock.model.protocol.runtime import Span
from setblock.roofline.hardware import HARDWARE
from setblock.roofline.prediction import Precision, Prediction, block_speedup
from setblock.roofline.shape import PRESETS

RIGHT, KIND, CACHED = 0.85, 4, 512  # how often a token is right; the kind whose prior that is; positions
SIZES, LARGEST, PASSES = (4, 8, 16), 16, 300
LOADS = tuple(1 << power for power in range(11))
LEARNING = 40  # passes
ANY_PASS = "simulated"
PREDICTION = Prediction(shape=PRESETS["llama-3.1-8b"], hardware=HARDWARE["h100"], precision=Precision.of("bfloat16"))

Decide = Callable[[DraftControl, Sequence[Prospects]], list[DraftChoice]]


def cost(tokens: int, rows: int) -> float:
    """Return the seconds of a pass by the roofline. Weights are read once a pass, and the cache once a row."""
    of_rows = PREDICTION.seconds(1, batch=rows, kv_length=CACHED) - PREDICTION.seconds(1, batch=rows, kv_length=0)
    return PREDICTION.seconds(1, batch=tokens, kv_length=0) + of_rows


def simulated(rows: int, decide: Decide, *, seed: int = 0) -> tuple[float, float]:
    """Return how many times as many tokens a second as plain decoding `rows` requests get, and the tokens of each of a pass.
    The first passes don't count: in these the costs are learned, from a clock that shows what `cost` says."""
    rng, control = random.Random(seed), control_of(SimpleNamespace(device=torch.device("cuda")))
    known: list[RowDrafts] = [control.new_row() for _ in range(rows)]
    drafts, stands = [0] * rows, [0] * rows
    gained = fed = 0
    seconds = 0.0
    passes = max(20, PASSES // rows)
    for number in range(LEARNING + passes):
        if number == LEARNING:
            gained, fed, seconds = 0, 0, 0.0
        prospects = [
            row.prospects([KIND] * length, LARGEST, waits=False) for row, length in zip(known, drafts, strict=True)
        ]
        chosen = decide(control, prospects)
        more = [choice.tokens for choice in chosen]
        tokens = rows + sum(more)
        taken = cost(tokens, rows)
        has_block = any(choice.fed for choice in chosen)
        control.learn(TimedPass(ANY_PASS, tokens, rows, rows * CACHED, unevenness(more), has_block, taken))
        seconds += taken
        fed += tokens
        for index, (row, choice) in enumerate(zip(known, chosen, strict=True)):
            right = next((place for place in range(choice.drafted) if rng.random() >= RIGHT), choice.drafted)
            block_start = stands[index] + 1 + choice.drafted
            kinds = (KIND,) * choice.drafted
            row.fed = Span(stands[index], block_start + choice.fed, block_start, is_prefill=False, kinds=kinds)
            stands[index] += 1 + right
            gained += 1 + right
            drafts[index] = max(0, choice.fed - 1) if right == choice.drafted else 0
            stands_at = Span(
                stands[index], stands[index], stands[index], is_prefill=False, kinds=(KIND,) * drafts[index]
            )
            control.observe(row, stands_at)
    return gained / seconds * cost(rows, rows) / rows, fed / passes / rows


def adaptive(control: DraftControl, prospects: Sequence[Prospects]) -> list[DraftChoice]:
    """Decide as the library does."""
    return control.decide(
        prospects, ANY_PASS, others=0, prompts=0, padded_rows=len(prospects), cached=CACHED * len(prospects)
    )


def fixed(size: int) -> Decide:
    """Return what always feeds a block of `size` tokens."""
    return lambda control, prospects: [DraftChoice(len(each.reached), size) for each in prospects]


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
