"""Callbacks of a training run. `TrainView` shows a bar with the losses and the speed on a terminal, and a line for each log
elsewhere. `Interruption` stops the run at Ctrl-C or SIGTERM, after the step, with a checkpoint."""

import os
import signal
from collections.abc import Mapping
from types import FrameType
from typing import Any

import torch
import typer
from accelerate.utils import gather
from rich.console import Console
from rich.progress import Progress
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from setblock.cli.messages import columns, print_message


class Interruption(TrainerCallback):
    """A callback that saves a checkpoint after the step in which a signal came, and raises `KeyboardInterrupt` with the
    signal's number. A second signal has its usual effect.

    Of several processes, all stop after the step in which one of them received a signal.
    """

    def __init__(self) -> None:
        self._signal = 0
        self._is_main = True
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Install the signal handlers."""
        self._is_main = state.is_world_process_zero
        self._before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop, if there was a signal."""
        if args.world_size > 1:  # of which each may have had it in another step
            self._signal = int(gather(torch.tensor([self._signal], device=args.device)).max())
        if self._signal and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def on_train_end(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Restore the signal handlers, and raise `KeyboardInterrupt` if there was a signal and steps are left."""
        self.close()
        if self._signal and state.global_step < state.max_steps:
            raise KeyboardInterrupt(self._signal)

    def close(self) -> None:
        """Restore the signal handlers."""
        while self._before:
            signal.signal(*self._before.popitem())

    def _note(self, number: int, frame: FrameType | None) -> None:
        if os.getpid() != self._process:  # a data loader's worker, which its parent ends
            if number == signal.SIGTERM:
                os._exit(128 + number)
            return
        self._signal = number
        self.close()
        if self._is_main:
            print_message("stopping after this step; interrupt again to stop at once")


_SHOWN = {
    "loss": ("loss", "{:.3f}"),
    "ntp_loss": ("ntp", "{:.3f}"),
    "matp_loss": ("matp", "{:.3f}"),
    "eval_ntp_loss": ("ntp", "{:.3f}"),
    "eval_matp_loss": ("matp", "{:.3f}"),
    "eval_token_loss": ("loss", "{:.3f}"),
    "eval_mean_token_accuracy": ("tokens as in the reference", "{:.1%}"),
    "tokens_per_second": ("tokens/s", "{:,.0f}"),
    "mfu": ("MFU", "{:.1%}"),
    "learning_rate": ("lr", "{:.1e}"),
}


def _text(logs: Mapping[str, Any]) -> str:
    parts = [f"{name} {form.format(logs[key])}" for key, (name, form) in _SHOWN.items() if key in logs]
    for key, value in logs.items():
        if key.startswith("eval_nfe_speedup_"):
            name = key.removeprefix("eval_nfe_speedup_")
            parts.append(f"NFE speed-up {value:.2f}x {'in exact mode' if name == 'exact' else f'at bound {name}'}")
        elif key.startswith("eval_accuracy_"):
            parts.append(f"accuracy {value:.1%} ({key.removeprefix('eval_accuracy_')})")
    return ", ".join(parts)


class TrainView(TrainerCallback):
    """A callback that shows the progress of a run, in the main process only."""

    def __init__(self, *, bar: bool) -> None:
        """Choose whether to draw a bar, on stderr; if not, each log is a line on stdout."""
        console = Console(stderr=True, highlight=False)
        self._progress = Progress(*columns("step", "{task.description}"), console=console, disable=not bar)
        self._task = self._measured = self._progress.add_task("", total=None)

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Say from which step a run goes on, and draw the bar."""
        if state.is_world_process_zero:
            if state.global_step:
                print_message(f"going on from step {state.global_step}")
            self._progress.update(self._task, total=state.max_steps, completed=state.global_step)
            self._progress.start()

    def on_held_out(self, done: int, total: int) -> None:
        """Show how many held-out documents have been measured, as a bar of its own while that takes."""
        if done == 0:
            self._measured = self._progress.add_task("held-out loss", total=total)
        self._progress.update(self._measured, completed=done, visible=done < total)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Advance the bar."""
        self._progress.update(self._task, completed=state.global_step)

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Show what was logged: losses next to the bar, evaluations above it."""
        logs = kwargs["logs"]
        text = _text(logs)
        if not text or not state.is_world_process_zero:
            return
        evaluated = any(key.startswith("eval_") for key in logs)
        line = f"step {state.global_step}/{state.max_steps}: {'held out: ' if evaluated else ''}{text}"
        if self._progress.disable:
            typer.echo(line)
        elif evaluated:
            self._progress.console.print(line, style="dim", markup=False, highlight=False)
        else:
            self._progress.update(self._task, description=text)

    def close(self) -> None:
        """Stop the bar where it is, also if the run was interrupted."""
        self._progress.stop()
