"""Measure how many tokens a second a run learns from, and what share of the hardware's peak that is.

Knows parameters, tokens and seconds. Knows nothing of which hardware there is.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments


@dataclass(frozen=True)
class TokenCost:
    """Hold the floating-point operations that a training step needs for each token.

    A matrix of N weights takes 2 N for a token forward, 2 N for the gradient of its input and, where it is trained, 2 N for its
    own: 6 N, or 4 N where it is frozen. What attention computes between tokens is left out, and so are layers that are run
    again; of experts, all are counted. Low for long rows, high for experts.

    Attributes:
        layers: for a token that passes through the layers.
        head: for a target, whose logits are computed.
    """

    layers: int
    head: int


def token_cost(model: nn.Module, *, head: nn.Module | None) -> TokenCost:
    """Return the cost of a model whose logits `head` computes."""
    of_head = {id(p) for p in head.parameters()} if head is not None else set()
    inputs = model.get_input_embeddings()  # type: ignore[operator]
    embeddings = {id(p) for p in inputs.parameters()}
    matrices = [p for p in model.parameters() if p.ndim >= 2]
    return TokenCost(
        layers=sum(_operations(p) for p in matrices if id(p) not in of_head | embeddings),
        head=sum(_operations(p) for p in matrices if id(p) in of_head),
    )


def _operations(parameter: nn.Parameter) -> int:
    return (6 if parameter.requires_grad else 4) * parameter.numel()


class StepClock(TrainerCallback):
    """Measure the seconds of training, its data included; evaluations and checkpoints are left out."""

    def __init__(self) -> None:
        self._began = 0.0
        self._stepped = 0.0  # when the last step ended, or what is left out after it

    def take(self) -> float:
        """Return the seconds since the last call, or since the training began. The device must have finished its work."""
        now = time.perf_counter()
        seconds = now - self._began
        self._began = self._stepped = now
        return seconds

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start."""
        self.take()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Note the time. Where something follows that is left out, wait for the device first."""
        if args.device.type != "cpu" and (control.should_evaluate or control.should_save):
            torch.accelerator.synchronize(args.device)
        self._stepped = time.perf_counter()

    def on_log(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave an evaluation out."""
        if any(key.startswith("eval_") for key in kwargs["logs"]):
            self._leave_out()

    def on_save(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Leave a checkpoint out."""
        self._leave_out()

    def _leave_out(self) -> None:
        now = time.perf_counter()
        self._began += now - self._stepped
        self._stepped = now
