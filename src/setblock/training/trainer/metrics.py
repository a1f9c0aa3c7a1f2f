"""The metrics of a run: tokens per second, their share of the hardware's peak, and a file in the output folder with one
line of JSON for each log.

The Trainer's own log is in its checkpoints, of which the older ones are deleted; this file outlives them.
"""

import json
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedModel, TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from setblock.files import write_whole
from setblock.training.inputs.doubled import TrainingInputs

METRICS_FILE = "metrics.jsonl"


class MetricsFile(TrainerCallback):
    """A trainer callback that appends each log to `metrics.jsonl`. A run that resumes from a checkpoint first drops the
    logs after it."""

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Drop the entries that will be logged again."""
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
    """Return the entries of a run's folder, oldest first; none if it has logged nothing. A truncated line is left
    out."""
    path = folder / METRICS_FILE
    entries = []
    for line in path.read_text().splitlines() if path.is_file() else []:
        with suppress(ValueError):  # the process was killed in the middle of it
            entries.append(json.loads(line))
    return entries


class TokenCost:
    """The floating-point operations that a training step needs for each token. A matrix of N weights takes 2 N for a
    token forward, 2 N for the gradient of its input and, where it is trained, 2 N for its own. Attention between tokens
    and layers that are run again are left out; of experts, all are counted."""

    def __init__(self, model: PreTrainedModel) -> None:
        head = model.get_output_embeddings()
        of_head = {id(p) for p in head.parameters()} if head is not None else set()
        embeddings = {id(p) for p in model.get_input_embeddings().parameters()}
        operations = {id(p): (6 if p.requires_grad else 4) * p.numel() for p in model.parameters() if p.ndim >= 2}
        # Operations of a token that passes through the layers, and of a target, whose logits are computed
        self.layers: int = sum(each for p, each in operations.items() if p not in of_head | embeddings)
        self.head: int = sum(each for p, each in operations.items() if p in of_head)

    def of(self, inputs: TrainingInputs) -> int:
        """Return the operations of a pass and its backward pass."""
        targets = len(inputs.ntp.index) + len(inputs.matp.index)
        return (inputs.clean_tokens + inputs.noisy_tokens) * self.layers + targets * self.head


class StepClock(TrainerCallback):
    """A clock of the seconds of training, data loading included; evaluations and checkpoints are left out."""

    _began = 0.0
    _stepped = 0.0  # when the last step ended, or the evaluation or checkpoint after it

    def take(self) -> float:
        """Return the seconds since the last call, or since the training began. The device must have finished its work."""
        now = time.perf_counter()
        seconds = now - self._began
        self._began = self._stepped = now
        return seconds

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, control: Any, **kwargs: Any) -> None:
        """Start."""
        self.take()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Record the time. If an evaluation or a checkpoint follows, which is left out, wait for the device first."""
        if args.device.type != "cpu" and (control.should_evaluate or control.should_save):
            torch.accelerator.synchronize(args.device)
        self._stepped = time.perf_counter()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave an evaluation out."""
        if any(key.startswith("eval_") for key in kwargs["logs"]):
            self.on_save(args, state, control)

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave a checkpoint out."""
        now = time.perf_counter()
        self._began += now - self._stepped
        self._stepped = now
