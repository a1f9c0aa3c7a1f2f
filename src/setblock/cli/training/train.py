"""Train a checkpoint from a recipe (`setblock train`)."""

import shlex
import signal
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from setblock.cli.messages import counted, figures_table, print_json, print_message, silence_libraries, stdout_console
from setblock.cli.options.groups import JSON, argument, option, option_group, optional
from setblock.errors import SetBlockError, check_installed, check_one_of
from setblock.roofline.hardware import HARDWARE, TFLOPS, hardware_of_device

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from setblock.model.sbd_model import SBDModel
    from setblock.training.config import SBDConfig
    from setblock.training.recipe import Recipe
    from setblock.training.trainer.trainer import SBDTrainer


@option_group()
class RecipeOptions:
    """The options of the recipe, and of what is replaced in it."""

    recipe: Path = argument(..., "A YAML file; the folder recipes/ of the repository has examples.", "RECIPE")
    overrides: list[str] | None = optional(
        "Replace a value of the recipe, such as training.learning_rate=1e-4. Can be repeated.",
        "--set",
        metavar="SECTION.KEY=VALUE",
    )

    def __post_init__(self) -> None:
        check_installed("training", "accelerate", "datasets")

    def load(self, **values: Any) -> "tuple[Recipe, SBDConfig]":
        """Read and check the recipe, with libraries silenced, and with further `values` replaced, by their dotted keys. Raise
        `SetBlockError` if the file can't be read, or a key or value in it is not valid."""
        from setblock.training.recipe import load_recipe, parse_override

        silence_libraries()
        if not sys.stderr.isatty():
            from datasets import disable_progress_bars

            disable_progress_bars()
        return load_recipe(self.recipe, overrides=dict(map(parse_override, self.overrides or [])) | values)


@option_group()
class EstimateOptions:
    """The assumptions of `--dry-run`."""

    gpus: int = option(1, "With --dry-run: number of GPUs, over which weights are sharded.", min=1)
    memory: float | None = optional("With --dry-run: GiB that a GPU has. Default: that of --hardware.", min=0)
    hardware: str = option("h100", f"With --dry-run: the GPU, one of {', '.join(HARDWARE)}.", metavar="NAME")
    peak: float | None = optional(
        "With --dry-run: peak of the GPU's dense arithmetic, instead of that of --hardware.", metavar="TFLOPS"
    )
    share: float = option(0.4, "With --dry-run: share of the GPU's peak that training reaches.", min=0.01, max=1)


def train(
    recipe: RecipeOptions,
    output: Path | None = optional("Output folder. Default: training.output_dir of the recipe.", metavar="DIR"),
    dry_run: bool = option(False, "Train nothing: estimate memory, disk space and time, without loading weights."),
    *,
    assumed: EstimateOptions,
    as_json: bool = JSON,
) -> None:
    """Train a model by a recipe.

    Ctrl-C or SIGTERM saves a checkpoint after the step; a second one stops at once. The same command resumes from the newest
    complete checkpoint in the output folder. It does not change a finished run.
    """
    from transformers import PrinterCallback

    from setblock.cli.training.callbacks import Interruption, TrainView
    from setblock.evaluation.during_training import DecodingEvaluator
    from setblock.training.run.checkpoints import earlier_run, newest_checkpoint, step_of
    from setblock.training.run.held_out import held_out_scores
    from setblock.training.run.train import train as run
    from setblock.training.trainer.metrics import read_metrics

    replaced: dict[str, Any] = {} if output is None else {"training.output_dir": str(output)}
    replaced |= {"training.use_cpu": True} if dry_run else {}  # a recipe for GPUs, on a machine that may have none
    checked, arguments = recipe.load(**replaced)
    if dry_run:
        _show_estimate(checked, arguments, assumed, as_json=as_json)
        return
    view = TrainView(bar=sys.stderr.isatty() and not checked.training.get("disable_tqdm"))
    stopper = Interruption()
    arguments.disable_tqdm = True  # the Trainer's own bar

    def callbacks(trainer: "SBDTrainer", model: "SBDModel") -> list["TrainerCallback"]:
        trainer.remove_callback(PrinterCallback)
        section = checked.evaluate_decoding
        evaluator = [] if section is None else [DecodingEvaluator(trainer, model, section)]
        return [view, *evaluator, stopper]

    # Of the processes that `torchrun` or `accelerate launch` started, only one prints
    is_main = arguments.process_index == 0
    is_finished, _ = earlier_run(arguments)
    started = time.perf_counter()
    try:
        saved = run(checked, arguments, callbacks=callbacks, peak=_peak(arguments), on_held_out=view.on_held_out)
    except KeyboardInterrupt as interruption:
        how = "stopped and saved" if interruption.args else "interrupted"
        if is_main:
            step = step_of(newest_checkpoint(Path(arguments.output_dir)))
            print_message(f"{how}; run the same command again to resume from step {step}")
        raise typer.Exit(128 + (*interruption.args, signal.SIGINT)[0]) from interruption
    finally:
        view.close()
        stopper.close()
    if not is_main:
        return
    if is_finished:
        typer.echo(f"{saved} is already trained; delete it or give another --output to train again")
        return
    minutes, seconds = divmod(round(time.perf_counter() - started), 60)
    scores = held_out_scores(read_metrics(saved))
    missing = "not measured, since the recipe holds no documents out (data.evaluation or data.evaluation_fraction)"
    typer.echo(f"held-out: {missing if scores is None else scores}")
    typer.echo(f"saved to {saved} after {minutes} min {seconds} s")
    typer.echo(f"next: setblock generate --model {shlex.quote(str(saved))} 'Your prompt'")


def _peak(arguments: "SBDConfig") -> float | None:
    """Return the most operations per second of this process's GPU, where the table of hardware has it."""
    import torch

    if arguments.device.type != "cuda":
        return None
    hardware = hardware_of_device(torch.cuda.get_device_name(arguments.device))
    return None if hardware is None else hardware.peak(16 if arguments.bf16 or arguments.fp16 else 32)


_GIB = 2**30


def _gib(size: int) -> str:
    return f"{size / _GIB:,.1f}" if size >= _GIB else f"{size / _GIB:.2g}"


def _duration(seconds: float) -> str:
    """Return a time in the largest unit of which there are at least two."""
    for unit, length in (("days", 86400), ("hours", 3600), ("minutes", 60)):
        if seconds >= 2 * length:
            return f"{seconds / length:,.1f} {unit}"
    return f"{seconds:.0f} seconds" if seconds >= 1 else "less than a second"


def _show_estimate(recipe: "Recipe", arguments: "SBDConfig", assumed: EstimateOptions, *, as_json: bool) -> None:
    """Print the estimate of a recipe, or raise `SetBlockError` if it needs more than the memory of a GPU."""
    from setblock.training.dry_run import LEFT_OUT, NOT_READ, advice, dry_run

    check_one_of("hardware", assumed.hardware, HARDWARE)
    hardware = HARDWARE[assumed.hardware]
    if assumed.peak is not None:
        hardware = hardware.with_figures(bandwidth=None, peak=assumed.peak * TFLOPS)
    gpus, share, bits = assumed.gpus, assumed.share, 16 if arguments.bf16 or arguments.fp16 else 32
    found = dry_run(recipe, arguments, gpus=gpus, peak=hardware.peak(bits), share=share)
    limit = hardware.memory / _GIB if assumed.memory is None else assumed.memory
    if as_json:
        assumptions = {"gpus": gpus, "total": found.total, "hardware": hardware.name, "share": share, "memory": limit}
        print_json({**asdict(found), **assumptions})
    else:
        machine = f"{counted(gpus, 'GPU')}, {hardware.name}"
        rows = [
            ("parameters", f"{found.parameters:,}"),
            ("  that are trained", f"{found.trained:,}"),
            ("steps", f"{found.steps:,}"),
            ("rows", f"{found.rows:,}"),
            ("tokens" if found.reads_data else "tokens at most", f"{found.tokens:,}"),
            ("tokens of the largest pass, with noisy ones", f"{found.pass_tokens:,}"),
            (f"GiB of a GPU, of {limit:,.0f}" + (", sharded" if gpus > 1 else ""), _gib(found.total)),
            *((f"  {kind}", _gib(size)) for kind, size in found.peak.items()),
            ("GiB of a host while weights load", _gib(found.host)),
            ("GiB of a checkpoint", _gib(found.checkpoint)),
            ("GiB on disk", _gib(found.disk)),
            ("operations", f"{found.operations:.2e}"),
            (f"time on {machine}, at {share:.0%} of the peak", _duration(found.seconds)),
            ("GPU-hours", f"{found.seconds / 3600 * gpus:,.3g}"),
        ]
        console = stdout_console()
        console.print(figures_table(rows))
        left_out = [*LEFT_OUT, *(() if found.reads_data else (NOT_READ,))]
        console.print("\n".join(["Left out:", *(f"- {each}" for each in left_out)]), style="dim", soft_wrap=True)
    if found.total > limit * _GIB:
        raise SetBlockError(
            f"it needs {found.total / _GIB:.1f} GiB of each GPU, more than the {limit:.1f} GiB that there are: "
            f"{advice(found, recipe, arguments)}"
        )
