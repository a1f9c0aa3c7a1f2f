"""The frozen teacher: the model that training began with.

Knows models, adapters and how they are run. Knows nothing of losses.
"""

import copy
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from setblock.masks import CLEAN
from setblock.training.distillation import LogitsOf, logits_of_hidden
from setblock.training.forward import training_logits
from setblock.training.head import split_head
from setblock.training.inputs import Targets, TrainingInputs


class FrozenTeacher:
    """Without the adapter where one is trained (the mask token's embedding aside), else a copy of all weights."""

    def __init__(self, model: nn.Module) -> None:
        """Args: the model that is about to be trained, in PEFT's wrapper if it has an adapter."""
        wrapper: Any = model
        self._wrapper = wrapper if hasattr(model, "disable_adapter") else None
        self._model: PreTrainedModel = (
            copy.deepcopy(model).requires_grad_(False) if self._wrapper is None else self._wrapper.get_base_model()
        )
        self._head = split_head(self._model)

    def __call__(self, inputs: TrainingInputs, causal: Tensor) -> LogitsOf:
        """Run over the clean half once; see `setblock.training.distillation.Teacher`.

        What is kept are hidden states, where the head is known, and else all of the logits.
        """
        width = inputs.input_ids.shape[1]
        clean = _clean_half(inputs)
        length = clean.input_ids.shape[1]
        index = causal // width * length + causal % width
        model, head, training = self._model, self._head, self._model.training
        kept: list[Tensor] = []
        handle = None
        if head is not None:
            handle = head.module.register_forward_pre_hook(
                lambda _, args: kept.append(args[0].reshape(-1, args[0].shape[-1])[index])
            )
        try:
            with torch.no_grad(), nullcontext() if self._wrapper is None else self._wrapper.disable_adapter():
                logits = training_logits(model.eval(), clean, index if head is None else index[:0])
        finally:
            model.train(training)
            if handle is not None:
                handle.remove()
        return logits.__getitem__ if head is None else logits_of_hidden(kept[0], head)


def _clean_half(inputs: TrainingInputs) -> TrainingInputs:
    """The clean rows of a doubled input, without targets."""
    length = int((inputs.block_ids[0] == CLEAN).sum())
    none = Targets(inputs.ntp.index[:0], inputs.ntp.token_ids[:0])
    names = ("input_ids", "position_ids", "document_ids", "block_ids", "limits")
    columns: dict[str, Any] = {name: getattr(inputs, name)[:, :length] for name in names}
    return replace(inputs, **columns, ntp=none, matp=none, causal=inputs.causal[:0])
