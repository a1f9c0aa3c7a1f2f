"""Functions compiled by `torch.compile` for passes of a few fixed sizes."""

from collections.abc import Callable
from typing import Any

import torch

MOST_SIZES = 256
"""Sizes of passes, each compiled once. PyTorch stops at 8 by default, and continues uncompiled."""


def compiled_for_sizes(function: Callable[..., Any], *, backend: str, fullgraph: bool = False) -> Callable[..., Any]:
    """Return a function or module compiled anew for each size of its tensors. `fullgraph`: raise where a part of it can't be
    compiled, and beyond `MOST_SIZES` sizes."""
    compiled = torch.compile(function, backend=backend, dynamic=False, fullgraph=fullgraph)

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=MOST_SIZES, accumulated_recompile_limit=MOST_SIZES):
            return compiled(*args, **kwargs)

    return call
