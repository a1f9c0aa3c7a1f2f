"""Compiled decoder layers in training (`training.torch_compile`).

The Trainer would compile the whole model. Here each decoder layer is compiled by itself, for any number of tokens: layers of a
kind share their code, so that one compilation serves all layers and all batches. Attention stays a function of its own within.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments
from transformers.modeling_layers import GradientCheckpointingLayer

from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import gate_of
from setblock.training.trainer.sharding import is_sharded


class CompiledLayers:
    """The decoder layers of a model, compiled in training steps only: passes with a cache have other shapes."""

    def __init__(self, model: nn.Module, args: TrainingArguments) -> None:
        """Compile nothing yet. Raise `SetBlockError` if the model has no decoder layers that are known here, or is trained in a
        way in which they can't be compiled."""
        self._layers: list[tuple[nn.Module, Callable[..., Any]]] = []
        if not args.torch_compile:
            return
        if gate_of(model) is not None:
            raise SetBlockError(
                "training.torch_compile does not work with adapter.only_noisy: leave one of the two out"
            )
        if is_sharded(args):  # it changes the layers' classes, by whose `forward` activation checkpointing goes
            raise SetBlockError("training.torch_compile does not work with FSDP2: leave one of the two out")
        options: dict[str, Any] = {"backend": args.torch_compile_backend, "mode": args.torch_compile_mode}
        self._layers = [
            (layer, torch.compile(layer.forward, dynamic=True, **options))
            for layer in model.modules()
            if isinstance(layer, GradientCheckpointingLayer)
        ]
        if not self._layers:
            raise SetBlockError(
                f"training.torch_compile: {type(model).__name__} has no decoder layers that are known here"
            )

    @contextmanager
    def active(self) -> Iterator[None]:
        """While active, the layers run compiled."""
        for layer, forward in self._layers:
            layer.forward = forward
        try:
            yield
        finally:
            for layer, _ in self._layers:
                del layer.forward


@contextmanager
def without_whole_model(args: TrainingArguments) -> Iterator[None]:
    """While active, the Trainer's accelerator is not asked to compile the whole model."""
    backend, args.torch_compile_backend = args.torch_compile_backend, None
    try:
        yield
    finally:
        args.torch_compile_backend = backend
