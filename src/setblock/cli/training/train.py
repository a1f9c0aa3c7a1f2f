"""Train a checkpoint from a recipe (`setblock train`)."""

import shlex
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from setblock.cli.messages import print_message
from setblock.cli.options.groups import option
from setblock.cli.options.recipe import RecipeOptions

if TYPE_CHECKING:
    from transformers import TrainerCallback

    from setblock.model.sbd_model import SBDModel
    from setblock.training.config import SBDConfig
    from setblock.training.trainer.trainer import SBDTrainer


def train(
    recipe: RecipeOptions,
    output: Path | None = option(
        None, "Output folder. Default: training.output_dir of the recipe.", metavar="DIR", show_default=False
    ),
) -> None:
    """Train a model by a recipe.

    Ctrl-C or SIGTERM saves a checkpoint after the step; a second one stops at once. The same command resumes from the newest
    complete checkpoint in the output folder. It does not change a finished run.
    """
    from transformers import PrinterCallback

    from setblock.cli.training.callbacks import Interruption, Stopped, TrainView
    from setblock.evaluation.during_training import DecodingEvaluator
    from setblock.training.run.checkpoints import check_finished, earlier_run, newest_checkpoint, step_of
    from setblock.training.run.train import train as run

    checked, arguments = recipe.load(**({} if output is None else {"training.output_dir": str(output)}))
    view = TrainView(bar=sys.stderr.isatty() and not checked.training.get("disable_tqdm"))
    stopper = Interruption()
    arguments.disable_tqdm = True  # the Trainer's own bar

    def callbacks(trainer: "SBDTrainer", model: "SBDModel") -> list["TrainerCallback"]:
        trainer.remove_callback(PrinterCallback)
        section = checked.evaluate_decoding
        evaluator = [] if section is None else [DecodingEvaluator(trainer, model, section)]
        return [view, *evaluator, stopper]

    folder = Path(arguments.output_dir)
    is_main = (
        arguments.process_index == 0
    )  # of those that `torchrun` or `accelerate launch` started, one speaks for all
    earlier = earlier_run(arguments)
    if earlier.is_finished:
        check_finished(folder, checked)
        if is_main:
            typer.echo(f"{folder} is already trained; delete it or give another --output to train again")
        return
    if earlier.checkpoint is not None and is_main:
        print_message(f"going on from step {step_of(earlier.checkpoint)}")
    started = time.perf_counter()
    try:
        saved = run(checked, arguments, callbacks=callbacks, peak=_peak(arguments))
    except Stopped as stopped:
        if is_main:
            print_message(f"stopped and saved; run the same command again to resume from step {stopped.step}")
        raise typer.Exit(stopped.code) from stopped
    except KeyboardInterrupt as interruption:
        step = step_of(newest_checkpoint(folder))
        print_message(f"interrupted; run the same command again to resume from step {step}")
        raise typer.Exit(130) from interruption
    finally:
        view.close()
        stopper.close()
    minutes, seconds = divmod(round(time.perf_counter() - started), 60)
    if is_main:
        typer.echo(f"saved to {saved} after {minutes} min {seconds} s")
        typer.echo(f"next: setblock generate --model {shlex.quote(str(saved))} 'Your prompt'")


def _peak(arguments: "SBDConfig") -> float | None:
    """Return the most operations per second of this process's GPU, where the table of hardware has it."""
    import torch

    from setblock.roofline.hardware import hardware_of_device

    if arguments.device.type != "cuda":
        return None
    hardware = hardware_of_device(torch.cuda.get_device_name(arguments.device))
    return None if hardware is None else hardware.peak(16 if arguments.bf16 or arguments.fp16 else 32)
