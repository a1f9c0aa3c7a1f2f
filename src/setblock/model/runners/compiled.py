"""Compile a model for passes of few, fixed shapes.

Knows `torch.compile`. Knows nothing of what makes shapes few: the decoder gives a compiled model padded inputs.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from transformers import PreTrainedModel

from setblock.model.protocol.runner import Function

_MOST_SHAPES = 64
"""Shapes that are compiled, each once; a model that meets more continues uncompiled, and PyTorch says so."""


def _limits() -> dict[str, Any]:
    """Return options of `torch.compile` that newer versions of PyTorch have; older ones stop at 8 shapes."""
    wanted = {"recompile_limit": _MOST_SHAPES, "isolate_recompiles": True}
    known = inspect.signature(torch.compile).parameters
    return {name: value for name, value in wanted.items() if name in known}


class CompiledModel:
    """Run a model and what is between its passes compiled: a new shape compiles for seconds to a minute, and a known one
    never does.

    Attributes:
        model: what to call in the model's stead.
    """

    def __init__(self, model: PreTrainedModel, *, backend: str) -> None:
        self._backend, self._functions = backend, dict[Function, Function]()
        self.model: Callable[..., Any] = torch.compile(model, backend=backend, dynamic=False, **_limits())

    def function(self, function: Function, /) -> Function:
        """Return what runs between passes, compiled as one graph in the same way; see
        `setblock.model.protocol.runner.Compile`."""
        if function not in self._functions:
            compiled = torch.compile(function, backend=self._backend, fullgraph=True, dynamic=False, **_limits())
            self._functions[function] = compiled
        return self._functions[function]
