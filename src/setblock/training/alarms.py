"""Warn a user while a run can still be stopped.

Knows the losses that are logged. Knows nothing of models.
"""

import warnings
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from setblock.errors import SetBlockWarning

_WINDOW = 5  # logs that a mean is taken over
_RISE = 1.2  # times the lowest mean so far


class NTPLossAlarm(TrainerCallback):
    """Warn, once, when the next-token loss rises for long: plain decoding, and all that is decoded after it, gets
    worse.

    Means of five logs are compared. It has risen when three of them in a row each exceed the one before, and the last the
    lowest so far by a fifth. That it rises in the first steps, at a learning rate made for much training, is usual.
    """

    def __init__(self) -> None:
        self._losses: list[float] = []
        self._warned = False

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Look at the loss of one log."""
        logs = kwargs["logs"]
        if "ntp_loss" not in logs or self._warned or not state.is_world_process_zero:
            return
        self._losses.append(float(logs["ntp_loss"]))
        if len(self._losses) % _WINDOW:
            return
        means = [sum(self._losses[first : first + _WINDOW]) / _WINDOW for first in range(0, len(self._losses), _WINDOW)]
        is_rising = len(means) >= 3 and means[-3] < means[-2] < means[-1]
        if is_rising and means[-1] > _RISE * min(means):
            self._warned = True
            warnings.warn(
                f"step {state.global_step}: ntp_loss has risen from {min(means):.3g} to {means[-1]:.3g}: plain decoding gets "
                "worse; if it does not fall again, lower training.learning_rate or raise training.ntp_weight",
                SetBlockWarning,
                stacklevel=2,
            )
