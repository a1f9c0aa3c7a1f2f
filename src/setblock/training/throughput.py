"""Measure how many tokens a second a run learns from, and what share of the hardware's peak that is.

Knows parameters, tokens and seconds. Knows nothing of which hardware there is.
"""

import time
from dataclasses import dataclass
from typing import Any

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
    """Measure the seconds of optimiser steps; what is between them (data, evaluations, checkpoints) is left out."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._seconds = 0.0

    def take(self) -> float:
        """Return the seconds of all steps since the last call."""
        seconds, self._seconds = self._seconds, 0.0
        return seconds

    def on_step_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Start."""
        self._began = time.perf_counter()

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Stop."""
        if self._began is not None:
            self._seconds += time.perf_counter() - self._began
            self._began = None
