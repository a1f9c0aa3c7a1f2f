"""Write all that a run logs, a line of JSON each, to its output folder, and warn while the run can still be stopped.

Knows the Trainer's logs and a file. Knows nothing of models. The Trainer's own record is in its checkpoints, of which
the older ones are deleted; this one outlives them.
"""

import json
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from setblock.errors import SetBlockWarning
from setblock.files import write_whole

METRICS_FILE = "metrics.jsonl"


class MetricsFile(TrainerCallback):
    """Append each log to `metrics.jsonl`. A run that resumes from a checkpoint first drops what came after it."""

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Drop what will be logged again."""
        folder, step = Path(args.output_dir), state.global_step
        if state.is_world_process_zero and (folder / METRICS_FILE).is_file():
            kept = [entry for entry in read_metrics(folder) if entry["step"] <= step and step]
            write_whole(folder / METRICS_FILE, "".join(json.dumps(entry) + "\n" for entry in kept))

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Append one entry."""
        if state.is_world_process_zero and kwargs["logs"]:
            with (Path(args.output_dir) / METRICS_FILE).open("a") as file:
                file.write(json.dumps({"step": state.global_step, **kwargs["logs"]}) + "\n")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Return the entries of a run's folder, oldest first; none where it has logged nothing. A line cut short is left
    out."""
    path = folder / METRICS_FILE
    entries = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        with suppress(ValueError):  # the process was killed in the middle of it
            entries.append(json.loads(line))
    return entries


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
