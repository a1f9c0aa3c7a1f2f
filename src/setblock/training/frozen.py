"""Run the frozen model, which training began with, over the clean half without a graph.

Knows models, adapters and how they are run. Knows nothing of losses.
"""

import copy
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from setblock.model.adapter.gate import gate_of
from setblock.model.attention.clean_keys import CleanKeys
from setblock.training.distillation import LogitsOf, logits_of_hidden
from setblock.training.forward import training_logits
from setblock.training.head import split_head
from setblock.training.inputs import TrainingInputs


class FrozenModel:
    """Hold the model without the adapter where one is trained (the mask token's embedding aside), else a copy of all
    weights.

    Where an adapter acts on noisy tokens alone, the clean half of every step is this model's: it needs no gradient then, and
    all noisy copies attend to its keys. It is also a teacher (`setblock.training.distillation.Teacher`).
    """

    def __init__(self, model: nn.Module) -> None:
        """Take the model that is about to be trained, in PEFT's wrapper if it has an adapter."""
        wrapper: Any = model
        self._wrapper = wrapper if hasattr(model, "disable_adapter") else None
        self._model: PreTrainedModel = (
            copy.deepcopy(model).requires_grad_(False) if self._wrapper is None else self._wrapper.get_base_model()
        )
        self._head = split_head(self._model)
        self._gate = gate_of(self._model)

    def _without_adapter(self) -> AbstractContextManager[Any]:
        if self._gate is not None:
            return self._gate.closed()
        return nullcontext() if self._wrapper is None else self._wrapper.disable_adapter()

    def clean_half(
        self, inputs: TrainingInputs, causal: Tensor, *, wrapped: nn.Module | None = None
    ) -> tuple[CleanKeys, LogitsOf]:
        """Run over the clean half once.

        Args:
            causal: [M] of the flattened [B * T] outputs, clean ones, whose logits may be asked for. What is kept of them are
                hidden states, where the head is known, and else all of the logits.
            wrapped: what to call in the model's stead, where a trainer has wrapped it.
        """
        keys, head, training = CleanKeys(), self._head, self._model.training
        kept: list[Tensor] = []

        def keep(hidden: Tensor) -> Tensor:
            kept.append(hidden)
            return hidden[:0]

        try:
            with torch.no_grad(), self._without_adapter():
                logits = training_logits(
                    self._model.eval(),
                    inputs,
                    causal,
                    wrapped=wrapped,
                    take=None if head is None else keep,
                    half="clean",
                    clean_keys=keys,
                )
        finally:
            self._model.train(training)
        return keys, logits.__getitem__ if head is None else logits_of_hidden(kept[0], head)

    def __call__(self, inputs: TrainingInputs, causal: Tensor) -> LogitsOf:
        """Return what comes after the clean outputs [M] of the flattened [B * T]."""
        return self.clean_half(inputs, causal)[1]
