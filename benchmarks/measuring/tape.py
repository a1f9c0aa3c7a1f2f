"""A recorder that stands for a CUDA graph on a CPU, and refuses what a capture would refuse.

It keeps every operation with the tensors it was called with, so that addresses stay, and replays the operations with no
Python of this project in between.
"""

import sys
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

_READS = {"_local_scalar_dense", "item", "is_nonzero", "equal", "nonzero", "nonzero_numpy", "argwhere", "masked_select"}
_READS |= {"unique_consecutive", "_unique2", "unique_dim", "bincount"}  # shapes by values


class Refused(RuntimeError):  # noqa: N818  # what a capture does with it
    """An operation that can't be captured."""


class Tape(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook has no types
    """See `setblock.engine.captured.Recorder`."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.operations: list[tuple[Any, Any, Any, list[torch.Tensor]]] = []
        self._kept: list[Any] = []

    def capture(self, run: Callable[[], Any]) -> Any:
        """Call `run` and record what it does. Return its result, whose tensors each replay fills anew."""
        with self:
            return run()

    @torch.inference_mode()
    def replay(self) -> None:
        """Do what was recorded."""
        for function, args, kwargs, outputs in self.operations:
            found = function(*args, **kwargs)
            for old, new in zip(outputs, _tensors(found) if outputs else [], strict=False):
                old.copy_(new)

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs, name = kwargs or {}, function.overloadpacket.__name__
        if name in _READS:
            raise Refused(f"the host reads a value: {name} in {_place()}")
        if name == "lift_fresh":
            raise Refused(f"a value of the host becomes a tensor in {_place()}")
        if name.strip("_").startswith("index") and any(
            isinstance(each, torch.Tensor) and each.dtype == torch.bool
            for each in (args[1] if isinstance(args[1], (list, tuple)) else [])
        ):
            raise Refused(f"indexing by booleans in {_place()}")
        inside = {each.untyped_storage()._cdata for each in _tensors([args, kwargs])}
        result = function(*args, **kwargs)
        outputs = list(_tensors(result))
        self._kept.append((args, kwargs, result))
        if function._schema.is_mutable:
            self.operations.append((function, args, kwargs, []))
        elif any(each.untyped_storage()._cdata not in inside for each in outputs):
            self.operations.append((function, args, kwargs, outputs))
        return result


def _tensors(found: Any) -> Iterator[torch.Tensor]:
    if isinstance(found, torch.Tensor):
        yield found
    elif isinstance(found, (list, tuple)):
        for each in found:
            yield from _tensors(each)
    elif isinstance(found, dict):
        yield from _tensors(list(found.values()))


def _place() -> str:
    frame = sys._getframe(2)
    while frame.f_back is not None and "/setblock/" not in frame.f_code.co_filename:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.split('/setblock/')[-1]}:{frame.f_lineno}"
