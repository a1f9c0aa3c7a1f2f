"""Run one of three first experiments, each in minutes on a CPU: print figures and draw a picture (docs/first-experiments.md).

    python examples/first.py twin
    python examples/first.py gamma
    python examples/first.py passes

twin    does learning blocks cost a model its plain decoding? A small model learns to copy a line of names. From there one run
        goes on by next-token prediction, and one learns blocks, on the same documents in the same number of steps.
gamma   how does the entropy bound trade accuracy for passes? The included model answers word problems at several bounds.
passes  what does a pass over a block cost, beside one over a token? Measured, and by the roofline.

Needs Matplotlib, which is in the dependency group `dev`, and `twin` the extra `train`. `passes` needs an idle machine.
"""

import argparse
import json
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from datasets import disable_progress_bars
from matplotlib import rc_context
from matplotlib.figure import Figure

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))

import setblock
from measuring.hardware import measured_hardware
from measuring.subjects import passes as timed_passes
from measuring.timing import interleaved
from setblock.data.tasks import Task, task_named
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError
from setblock.evaluation.result import Result
from setblock.evaluation.run import evaluate, sweep
from setblock.model.loading.loading import NotTrainedForBlocks
from setblock.model.loading.named import BUNDLED_MODEL
from setblock.roofline.prediction import Precision, Prediction
from setblock.roofline.shape import shape_of
from setblock.training.recipe import checked_recipe
from setblock.training.run.train import train
from setblock.training.trainer.metrics import read_metrics

TASK = "tasks/lines.py:line-copy"
GAMMAS = (0.0, 0.01, 0.1, 0.35, 1.0)
BLOCKS = (1, 8, 16)
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "setblock",
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def main() -> None:
    """Run the one that is named."""
    options = parse_options()
    disable_progress_bars()
    try:
        {"twin": twin, "gamma": gamma, "passes": passes}[options.experiment](options)
    except SetBlockError as error:
        sys.exit(f"error: {error}")
    print(f"drawn: {options.out}")


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("experiment", choices=("twin", "gamma", "passes"))
    parser.add_argument("--out", type=Path, help="picture, .svg or .png (runs/first/EXPERIMENT.svg)")
    parser.add_argument("--steps", type=int, default=600, help="twin: of the start, and half as many of each run (600)")
    parser.add_argument("--limit", type=int, default=200, help="twin, gamma: examples (200)")
    parser.add_argument("--repeats", type=int, default=25, help="passes: of each pass (25)")
    options = parser.parse_args()
    options.folder = Path("runs/first")
    options.out = options.out or options.folder / f"{options.experiment}.svg"
    return options


def twin(options: argparse.Namespace) -> None:
    """Train the start, the twin and the model of blocks, and compare them."""
    folder, steps = options.folder, options.steps
    start = trained(folder / "start", None, "ntp", steps)
    runs = {name: trained(folder / name, start, name, steps // 2) for name in ("ntp", "sbd")}
    task, rows = task_named(TASK), {}
    asked: tuple[tuple[str, Literal["ntp", "exact"]], ...] = (("ntp", "ntp"), ("sbd", "ntp"), ("sbd", "exact"))
    for name, method in asked:
        settings = DecodingSettings(method=method, drafts="fixed")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", NotTrainedForBlocks)  # which the twin is meant to be
            model = setblock.load(runs[name])
        rows[name, method] = evaluate(model, task, settings=settings, limit=options.limit)
        print(f"trained by {name}, decoded by {method}: {summary(rows[name, method])}")
    with rc_context(_STYLE):
        figure = Figure(figsize=(9, 3.6), layout="constrained")
        losses, counts = figure.subplots(1, 2)
        for name, label in (("ntp", "next-token twin"), ("sbd", "learns blocks")):
            found = [
                (entry["step"], entry["eval_ntp_loss"])
                for entry in read_metrics(runs[name])
                if "eval_ntp_loss" in entry
            ]
            losses.plot(*zip(*found, strict=True), marker="o", label=label)
        losses.set(xlabel="steps after the start", ylabel="held-out next-token loss, nats", ylim=(0, None))
        losses.legend(frameon=False)
        labels = ("twin,\nplain", "blocks,\nplain", "blocks,\nexact")
        bars = counts.bar(labels, [each.mean_passes for each in rows.values()], color=("C0", "C1", "C2"))
        counts.bar_label(bars, [f"{each.accuracy:.0%} right" for each in rows.values()])
        counts.set(ylabel="passes an answer, without the prompt's")
        saved(figure, options.out)


def trained(output: Path, start: Path | None, objective: str, steps: int) -> Path:
    """Return the folder of a small model, trained by an objective from a start, or from scratch."""
    shape = {"hidden_size": 128, "num_hidden_layers": 4, "intermediate_size": 344, "num_attention_heads": 4}
    config = {"model_type": "llama", **shape, "max_position_embeddings": 512, "tie_word_embeddings": True}
    held_out = {"split": "validation", "documents": 128}
    content = {
        "model": {"config": config, "vocab_size": 400} if start is None else {"path": str(start)},
        "data": {"source": TASK, "documents": 32 * steps, "seed": int(start is not None), "evaluation": held_out},
        "training": {
            "objective": objective,
            "output_dir": str(output),
            "max_steps": steps,
            "per_device_train_batch_size": 32,
            "train_sampling_strategy": "group_by_length",
            "matrix_optimizer": "muon",
            "learning_rate": 4.0e-3 if start is None else 1.0e-3,
            "lr_scheduler_type": "cosine",
            "warmup_steps": 20,
            "adam_beta2": 0.98,
            "max_grad_norm": 1.0,
            "use_cpu": True,
            "logging_steps": 25,
            "eval_strategy": "steps",
            "eval_steps": max(1, steps // 10),
            "disable_tqdm": True,
            "report_to": "none",
            **({"block_sizes": [4, 8, 16], "logit_shift": True, "noise_on": "targets"} if objective == "sbd" else {}),
            **({"complete_last_block": True, "full_mask_share": 0.25} if objective == "sbd" else {}),
        },
    }
    print(f"training {output}, {steps} steps", flush=True)
    return train(*checked_recipe(output, content, overrides={}))


def gamma(options: argparse.Namespace) -> None:
    """Sweep the entropy bound of the included model, with plain decoding and exact mode beside it."""
    options.folder.mkdir(parents=True, exist_ok=True)
    points = [DecodingSettings(method="sbd", sampler=EntropyBounded(each), block_size=16) for each in GAMMAS]
    points.append(DecodingSettings(method="exact", block_size=16))
    task: Task[Any] = task_named("word-problems")
    results = sweep(
        setblock.load(BUNDLED_MODEL),
        task,
        points,
        limit=options.limit,
        path=options.folder / f"gamma-{options.limit}.jsonl",
    )
    labels = ["ntp", *(f"$\\gamma$ = {each:g}" for each in GAMMAS), "exact"]
    for label, result in zip(labels, results, strict=True):
        print(f"{label}: {summary(result)}")
    with rc_context(_STYLE):
        figure = Figure(figsize=(7, 4), layout="constrained")
        axes = figure.subplots()
        points_at = [(result.mean_passes, 100 * (result.accuracy or 0)) for result in results]
        axes.plot(*zip(*points_at[1:-1], strict=True), marker="o", color="C0", label="sbd, entropy-bounded")
        axes.plot(*points_at[-1], marker="s", linestyle="none", color="C2", label="exact", markersize=8)
        axes.plot(
            *points_at[0], marker="*", linestyle="none", color="black", label="ntp, plain decoding", markersize=11
        )
        for label, at in zip(labels, points_at, strict=True):
            side: dict[str, Any] = {"xytext": (8, -12), "ha": "left"}
            if label in ("exact", "ntp"):
                side = {"xytext": (-8, -14), "ha": "right"}
            axes.annotate(label, at, textcoords="offset points", **side)
        axes.set_xscale("log")
        ticks = [tick for tick in (2, 3, 5, 10, 20, 30, 50, 100) if tick <= 1.3 * points_at[0][0]]
        axes.xaxis.set_ticks(ticks, [str(tick) for tick in ticks])
        axes.xaxis.set_ticks([], minor=True)
        axes.set(xlabel="passes an answer, without the prompt's (fewer is faster)", ylabel="right answers, %")
        axes.legend(frameon=False, loc="lower right")
        saved(figure, options.out)


def passes(options: argparse.Namespace) -> None:
    """Time passes of the included model over one token and over blocks, beside the roofline of this machine."""
    model, cached = setblock.load(BUNDLED_MODEL, device="cpu"), 256
    actions = {
        k: timed_passes(model, "one token" if k == 1 else "block", block_size=k, kv_length=cached)["library"]
        for k in BLOCKS
    }
    times = interleaved({str(k): action for k, action in actions.items()}, repeats=options.repeats)
    config: Mapping[str, Any] = json.loads((BUNDLED_MODEL / "config.json").read_text())
    hardware = measured_hardware(torch.float32, device=torch.device("cpu"))
    prediction = Prediction(shape=shape_of(config), hardware=hardware, precision=Precision.of("float32"))
    roofline = [1000 * prediction.seconds(k, outputs=k, batch=1, kv_length=cached) for k in BLOCKS]
    measured = [1000 * times[str(k)].median for k in BLOCKS]
    print(f"measured bandwidth {hardware.bandwidth / 1e9:.1f} GB/s, {torch.get_num_threads()} threads")
    for k, one, other in zip(BLOCKS, measured, roofline, strict=True):
        print(
            f"k = {k}: {one:.2f} ms, {one / measured[0]:.2f} of one token; roofline {other:.2f}, {other / roofline[0]:.2f}"
        )
    with rc_context(_STYLE):
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        axes = figure.subplots()
        for label, values, shift in (("measured, median", measured, -0.2), ("roofline", roofline, 0.2)):
            bars = axes.bar([place + shift for place in range(len(BLOCKS))], values, width=0.38, label=label)
            axes.bar_label(bars, [f"{each / values[0]:.2f}x" for each in values])
        axes.set_xticks(range(len(BLOCKS)), [f"k = {k}" for k in BLOCKS])
        axes.set(ylabel="milliseconds of a pass")
        axes.legend(frameon=False)
        saved(figure, options.out)


def summary(result: Result) -> str:
    """Return accuracy and passes."""
    return f"{result.accuracy or 0:.1%} right, {result.mean_passes:.1f} passes an answer"


def saved(figure: Figure, path: Path) -> None:
    """Write a picture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=130, metadata={"Date": None} if path.suffix == ".svg" else None)


if __name__ == "__main__":
    main()
