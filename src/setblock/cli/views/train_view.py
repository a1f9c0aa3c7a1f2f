"""Show the output of `setblock train`: a bar with the losses and the speed on a terminal, and a line for each log elsewhere;
and of its dry run a table.

Knows the Trainer's logs and Rich. Knows nothing of models.
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import typer
from rich import box
from rich.progress import Progress, TaskID
from rich.table import Table
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from setblock.cli.messages import columns, print_json, stderr_console, stdout_console
from setblock.errors import SetBlockError

_SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "ntp_loss": ("ntp", "{:.3f}"),
    "matp_loss": ("matp", "{:.3f}"),
    "eval_ntp_loss": ("ntp", "{:.3f}"),
    "eval_matp_loss": ("matp", "{:.3f}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
    "learning_rate": ("lr", "{:.1e}"),
}


def log_text(logs: Mapping[str, Any]) -> str:
    """Return one line of what a log says; empty where nothing of it is to be shown."""
    parts = [f"{name} {form.format(logs[key])}" for key, (name, form) in _SHOWN.items() if key in logs]
    for key, value in logs.items():
        if key.startswith("eval_nfe_speedup_"):
            name = key.removeprefix("eval_nfe_speedup_")
            parts.append(f"NFE speed-up {value:.2f}x {'in exact mode' if name == 'exact' else f'at bound {name}'}")
        elif key.startswith("eval_accuracy_"):
            parts.append(f"accuracy {value:.1%} ({key.removeprefix('eval_accuracy_')})")
    return ", ".join(parts)


class TrainView(TrainerCallback):
    """Show the progress of a run. Only the main process shows anything."""

    def __init__(self, *, bar: bool) -> None:
        """Choose whether to draw a bar, on stderr; if not, each log is a line on stdout."""
        shown = columns("step", "{task.description}")
        self._progress = Progress(*shown, console=stderr_console()) if bar else None
        self._task: TaskID | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Draw the bar."""
        if self._progress is not None and state.is_world_process_zero:
            self._progress.start()
            self._task = self._progress.add_task("", total=state.max_steps, completed=state.global_step)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Move it."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Say what was logged: losses next to the bar, evaluations above it."""
        logs = kwargs["logs"]
        text = log_text(logs)
        if not text or not state.is_world_process_zero:
            return
        evaluated = any(key.startswith("eval_") for key in logs)
        line = f"step {state.global_step}/{state.max_steps}: {'held out: ' if evaluated else ''}{text}"
        if self._progress is None:
            typer.echo(line)
        elif evaluated:
            self._progress.console.print(line, style="dim", markup=False, highlight=False)
        elif self._task is not None:
            self._progress.update(self._task, description=text)

    def close(self) -> None:
        """Leave the bar as it is, also where the run was interrupted."""
        if self._progress is not None:
            self._progress.stop()


if TYPE_CHECKING:
    from setblock.roofline.hardware import Hardware
    from setblock.training.config import SBDConfig
    from setblock.training.recipe import Recipe

_GIB = 2**30


def show_dry_run(
    recipe: "Recipe",
    arguments: "SBDConfig",
    *,
    gpus: int,
    memory: float | None,
    hardware: "Hardware",
    share: float,
    as_json: bool,
) -> None:
    """Print the estimate of a recipe.

    Args:
        memory: GiB that a GPU has; None: what the hardware has.

    Raises:
        SetBlockError: it needs more.
    """
    from setblock.training.dry_run import LEFT_OUT, advice, dry_run

    bits = 16 if arguments.bf16 or arguments.fp16 else 32
    found = dry_run(recipe, arguments, gpus=gpus, peak=hardware.peak(bits), share=share)
    limit = (hardware.memory or float("inf")) / _GIB if memory is None else memory
    if as_json:
        print_json({**asdict(found), "total": found.total, "hardware": hardware.name, "share": share, "memory": limit})
    else:
        table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(justify="right", no_wrap=True)
        for name, value in (
            ("parameters", f"{found.parameters:,}"),
            ("  that are trained", f"{found.trained:,}"),
            ("steps", f"{found.steps:,}"),
            ("rows", f"{found.rows:,}"),
            ("tokens at most", f"{found.tokens:,}"),
            ("tokens of a pass, with noisy ones", f"{found.pass_tokens:,}"),
            (f"GiB of each of {gpus} GPUs" + (", sharded" if found.is_sharded else ""), f"{found.total / _GIB:.1f}"),
            *((f"  {kind}", f"{size / _GIB:.1f}") for kind, size in found.peak.items()),
            ("GiB of a host while weights load", f"{found.host / _GIB:.0f}"),
            ("GiB of a checkpoint", f"{found.checkpoint / _GIB:.1f}"),
            ("GiB on disk", f"{found.disk / _GIB:.1f}"),
            ("operations", f"{found.operations:.2e}"),
            (f"days at {share:.0%} of the peak of {hardware.name}", f"{found.seconds / 86400:.2f}"),
            ("GPU-hours", f"{found.seconds / 3600 * gpus:,.1f}"),
        ):
            table.add_row(name, value)
        console = stdout_console()
        console.print(table)
        console.print("Left out: " + "; ".join(LEFT_OUT) + ".", style="dim", highlight=False)
    if found.total > limit * _GIB:
        raise SetBlockError(
            f"it needs {found.total / _GIB:.1f} GiB of each GPU, more than the {limit:.1f} GiB that there are: "
            f"{advice(found, recipe, arguments)}"
        )
