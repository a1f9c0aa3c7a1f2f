"""Where a program waits for its device: operations whose result the host reads, or whose shape depends on values.

Knows PyTorch's operations. Counts them on any device; only on a GPU do they cost anything, since there the host otherwise
runs ahead.
"""

import sys
from collections import Counter
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

# Their results' shapes depend on values, or are handed to Python.
_WAITING = {
    "_local_scalar_dense",
    "item",
    "is_nonzero",
    "equal",
    "nonzero",
    "nonzero_numpy",
    "argwhere",
    "masked_select",
}
_INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}  # by booleans
_OUTSIDE = (str(Path(torch.__file__).parent.parent), __file__)


class Synchronisations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook has no types
    """While active, counts what would wait for a GPU, by the line of this project that asked for it.

    Attributes:
        counts: `file:line function` -> times.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()

    @property
    def total(self) -> int:
        """All of them."""
        return sum(self.counts.values())

    def __enter__(self) -> "Synchronisations":
        """Also counts `tolist`, which on a CPU is no operation."""
        plain = torch.Tensor.tolist

        def tolist(tensor: torch.Tensor) -> Any:
            self.counts[_asker()] += 1
            return plain(tensor)

        self._patch = patch.object(torch.Tensor, "tolist", tolist)
        self._patch.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop counting."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self._patch.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it waits."""
        name = func.overloadpacket.__name__
        if name in _WAITING or (name in _INDEXING and any(_is_mask(each) for each in args[1])):
            self.counts[_asker()] += 1
        return func(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def _asker() -> str:
    """The innermost line outside of PyTorch, Transformers and this file."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OUTSIDE):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
