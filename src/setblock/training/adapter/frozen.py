"""Run the frozen model, which training began with, over the clean half without a graph.

Knows models, adapters and how they are run. Knows nothing of losses.
"""

from typing import Any

import torch
from torch import Tensor, nn

from setblock.model.adapter.gate import gate_of
from setblock.model.attention.document_attention import CleanKeys
from setblock.training.inputs.doubled import TrainingInputs
from setblock.training.loss.forward import training_logits
from setblock.training.loss.head import split_head
from setblock.training.loss.loss import LogitsOf, logits_of_hidden


class FrozenModel:
    """Hold a model whose adapter acts on noisy tokens alone, as it is without the adapter.

    The clean half of every step is this model's: it needs no gradient, and all noisy copies attend to its keys. Its logits are
    those of the teacher, where masked tokens have one (`setblock.training.loss.loss`).
    """

    def __init__(self, model: nn.Module) -> None:
        """Take the model that is about to be trained, in PEFT's wrapper."""
        wrapper: Any = model
        self._model = wrapper.get_base_model()
        self._head = split_head(self._model)
        gate = gate_of(self._model)
        assert gate is not None
        self._gate = gate

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
            with torch.no_grad(), self._gate.closed():
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
