"""Find layers that read the same input, such as those of queries, keys and values, and serve them by one product.

Knows modules and tensors. Knows nothing of families: a pass is watched.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel


@torch.inference_mode()
def sharing_input(model: PreTrainedModel, layers: Mapping[str, nn.Module]) -> list[list[str]]:
    """Return the names of `layers`, in groups that are called one behind the other with one tensor. Each is in one
    group.

    A layer that a short pass calls not once, such as an expert, is alone.
    """
    calls: list[tuple[Tensor, list[str]]] = []

    def watch(name: str, module: nn.Module, args: tuple[Any, ...]) -> None:
        if args and calls and calls[-1][0] is args[0]:
            calls[-1][1].append(name)
        elif args:
            calls.append((args[0], [name]))

    handles = [layer.register_forward_pre_hook(partial(watch, name)) for name, layer in layers.items()]
    try:
        model(input_ids=torch.ones((1, 2), dtype=torch.long, device=model.device), use_cache=False)
    finally:
        for handle in handles:
            handle.remove()
    called = [name for _, group in calls for name in group]
    groups = [[name for name in group if called.count(name) == 1] for _, group in calls]
    grouped = {name for group in groups for name in group}
    return [*filter(None, groups), *([name] for name in layers if name not in grouped)]


class SharedProduct:
    """Compute together what several layers make of one input: the first that is asked has it computed for all.

    Each layer's part is given once; asked again, or for another input, it is computed again. So the parts are right whatever
    the order of calls is, and nothing of a pass is kept when every layer has had its part.
    """

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._parts: list[Tensor | None] = []

    def part(self, index: int, hidden: Tensor, product: Callable[[Tensor], Sequence[Tensor]]) -> Tensor:
        """Return what one layer makes of its input.

        Args:
            hidden: [..., D] what it is called with.
            product: gives all layers' parts [..., size].
        """
        part = self._parts[index] if self._input is hidden else None
        if part is None:
            self._input, self._parts = hidden, list(product(hidden))
            part = self._parts[index]
            assert part is not None
        self._parts[index] = None
        if not any(each is not None for each in self._parts):
            self._input, self._parts = None, []
        return part
