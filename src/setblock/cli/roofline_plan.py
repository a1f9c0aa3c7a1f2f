"""How a plan looks, on the terminal and as JSON."""

from dataclasses import asdict
from typing import Any

from rich.console import Console

from setblock.cli.roofline_view import grid, line
from setblock.roofline.hardware import GB
from setblock.roofline.plan import Evaluated, Plan
from setblock.roofline.prediction import Prediction

HOW_TO_MEASURE = (
    "How many passes a gamma saves is your trained model's, and is not predicted. For several gammas, run "
    "`setblock evaluate --model M --split validation --gamma G --json >> results.jsonl`; "
    "then --plan --evaluations results.jsonl"
)


def print_plan(console: Console, plan: Plan, prediction: Prediction, *, concurrency: int, kv_length: int) -> None:
    """What each block size costs, what was measured, and the advice that follows."""
    line(console, _memory_text(prediction, concurrency=concurrency, kv_length=kv_length))
    rows = [
        (
            str(cost.block_size),
            f"{cost.slowdown:.3f}",
            "never" if cost.break_even_nfe is None else f"{cost.break_even_nfe:.2f}x",
            f"{cost.best:.2f}x",
        )
        for cost in plan.costs
    ]
    columns = ("k", "block pass / one token", "gains above NFE", "at most, one pass a block")
    console.print(grid(f"{concurrency} at once, {kv_length:,} cached positions each", columns, rows))
    if plan.stated is not None:
        k, nfe, speedup = plan.stated
        line(console, f"NFE {nfe:g}x at k={k}, as stated: {speedup:.2f} times plain decoding's speed")
    if plan.evaluated:
        console.print(
            grid(
                "what was measured of the model, and the speed-up that follows",
                ("decoding", "k", "accuracy (plain)", "NFE", "speed-up"),
                [_evaluated_row(each, speedup, plan.chosen) for each, speedup in plan.evaluated],
            )
        )
    line(console, advice(plan))


def plan_json(plan: Plan, prediction: Prediction, *, concurrency: int, kv_length: int) -> dict[str, Any]:
    """All of it; `chosen` is null where there is nothing to choose from, or nothing good enough."""
    evaluated = [asdict(each) | {"speedup": speedup} for each, speedup in plan.evaluated]
    return {
        "concurrency": concurrency,
        "kv_length": kv_length,
        "batch_in_memory": prediction.batch_in_memory(kv_length),
        "block_sizes": [asdict(cost) for cost in plan.costs],
        "stated": None
        if plan.stated is None
        else dict(zip(("block_size", "nfe_speedup", "speedup"), plan.stated, strict=True)),
        "evaluated": evaluated,
        "chosen": None if plan.chosen is None else asdict(plan.chosen),
        "advice": advice(plan),
    }


def advice(plan: Plan) -> str:
    """In a sentence."""
    if plan.chosen is not None:
        speedup = next(speedup for each, speedup in plan.evaluated if each is plan.chosen)
        number = plan.chosen.num_examples
        return (
            f"Take {_decoding_text(plan.chosen)}, k = {plan.chosen.block_size}: {_at_least(plan.chosen)}{speedup:.2f} times "
            f"plain decoding's speed, predicted, at the accuracy measured on {number} examples."
        )
    if plan.evaluated:
        return "Decode plainly: nothing that was measured is predicted to be faster within the tolerance."
    if all(cost.break_even_nfe is None for cost in plan.costs):
        return "Decode plainly: under this load not even a block in every pass would gain."
    return HOW_TO_MEASURE


def _evaluated_row(each: Evaluated, speedup: float, chosen: Evaluated | None) -> tuple[str, ...]:
    mark = "* " if each is chosen else ""
    return (
        f"{mark}{_decoding_text(each)}",
        str(each.block_size),
        f"{each.accuracy:.1%} ({each.ntp_accuracy:.1%})",
        f"{each.nfe_speedup:.2f}x",
        f"{_at_least(each)}{speedup:.2f}x",
    )


def _decoding_text(each: Evaluated) -> str:
    if each.method == "exact":
        return "method exact"
    return each.sampler if each.gamma is None else f"{each.sampler} (gamma {each.gamma:g})"


def _at_least(each: Evaluated) -> str:
    return "at least " if each.method == "exact" else ""


def _memory_text(prediction: Prediction, *, concurrency: int, kv_length: int) -> str:
    weights, cache = prediction.weight_memory, concurrency * prediction.kv_memory(kv_length)
    text = f"memory: {weights / GB:.1f} GB of weights and {cache / GB:.1f} GB of cache"
    fits = prediction.batch_in_memory(kv_length)
    if fits is None or prediction.hardware.memory is None:
        return text
    room = f"of {prediction.hardware.memory / GB:.0f} GB"
    return f"{text}, {room}" if concurrency <= fits else f"{text}: more than {room}; {fits} at once would fit"
