"""Stop a training run at Ctrl-C or SIGTERM: after the step, with a checkpoint.

Knows signals and the Trainer's callbacks. Knows nothing of models.
"""

import os
import signal
import threading
from types import FrameType
from typing import Any

import torch
from accelerate.utils import gather
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from setblock.cli.messages import print_message

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Stopped(KeyboardInterrupt):
    """Signal that a run was stopped, and saved. Nobody who catches an `Exception` takes it for a fault.

    Attributes:
        code: exit code of the process, by the shell's convention: 128 and the signal's number.
        step: optimiser steps in the checkpoint.
    """

    def __init__(self, code: int, step: int) -> None:
        super().__init__(f"stopped at step {step}")
        self.code = code
        self.step = step


class Interruption(TrainerCallback):
    """Save a checkpoint and raise `Stopped` after the step in which a signal came. A second signal does what it always does.

    Of several processes, all stop after the step in which one of them has had a signal.
    """

    def __init__(self) -> None:
        self._signal = 0
        self._is_main = True
        self._before: dict[int, Any] = {}
        self._process = os.getpid()

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Take the signals. Python has them in its main thread only."""
        self._is_main = state.is_world_process_zero
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._note) for number in _SIGNALS}

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop, if there was a signal."""
        if args.world_size > 1:  # of which each may have had it in another step
            self._signal = int(gather(torch.tensor([self._signal], device=args.device)).max())
        if self._signal and state.global_step < state.max_steps:
            control.should_save = control.should_training_stop = True

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Give the signals back.

        Raises:
            Stopped: there was one, and steps are left.
        """
        self.close()
        if self._signal and state.global_step < state.max_steps:
            raise Stopped(128 + self._signal, state.global_step)

    def close(self) -> None:
        """Give the signals back."""
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
