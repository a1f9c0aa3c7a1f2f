"""Count where a program waits for its device: operations whose result the host reads, or whose shape depends on values.

Knows PyTorch's operations. Counts them on any device; only on a GPU do they cost anything, since there the host otherwise
runs ahead. What is read of a `HostCopy` when the device has since been given another pass is no wait: the device continues.
"""

import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from setblock import devices
from setblock.devices import HostCopy, Packed

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
_PRODUCTS = {"mm", "addmm", "bmm", "baddbmm", "linear"}  # of matrices: there is none between two passes of a model
_OUTSIDE = (str(Path(torch.__file__).parent.parent), str(Path(__file__).parent))


@contextmanager
def as_on_an_accelerator() -> Iterator[None]:
    """Make decoding do on a CPU what it does on a device that the host would have to wait for."""
    with patch.object(devices, "waits", lambda device: True):
        yield


class Synchronisations(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook has no types
    """Count what would wait for a GPU while active, by the line of this project that asked for it.

    Attributes:
        counts: `file:line function` -> times.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.counts: Counter[str] = Counter()
        self._products = 0
        self._begun: dict[int, int] = {}  # copies for the host: how many products there were before
        self._is_reading = False

    @property
    def total(self) -> int:
        """Return the count of all of them."""
        return sum(self.counts.values())

    def __enter__(self) -> "Synchronisations":
        """Begin to count, `tolist` included, which on a CPU is no operation."""
        plain, begin, read = torch.Tensor.tolist, HostCopy.__init__, HostCopy.read

        def tolist(tensor: torch.Tensor) -> Any:
            if not self._is_reading:
                self.counts[asker()] += 1
            return plain(tensor)

        def begin_copy(copy: HostCopy, tables: Packed) -> None:
            self._begun[id(copy)] = self._products
            begin(copy, tables)

        def read_copy(copy: HostCopy) -> Any:
            if self._products <= self._begun.pop(id(copy), self._products):
                self.counts[asker()] += 1
            self._is_reading = True
            try:
                return read(copy)
            finally:
                self._is_reading = False

        self._patches: list[Any] = [
            patch.object(torch.Tensor, "tolist", tolist),
            patch.object(HostCopy, "__init__", begin_copy),
            patch.object(HostCopy, "read", read_copy),
        ]
        for each in self._patches:
            each.start()
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        """Stop counting."""
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        for each in self._patches:
            each.stop()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count it if it waits."""
        name = func.overloadpacket.__name__
        self._products += name in _PRODUCTS
        if name in _WAITING or (name in _INDEXING and any(_is_mask(each) for each in args[1])):
            self.counts[asker()] += 1
        return func(*args, **(kwargs or {}))


def _is_mask(index: Any) -> bool:
    return index is not None and index.dtype in (torch.bool, torch.uint8)


def asker() -> str:
    """Return the innermost line outside of PyTorch, Transformers and this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_OUTSIDE):
        frame = frame.f_back
    path = Path(frame.f_code.co_filename)
    return f"{path.parent.name}/{path.name}:{frame.f_lineno} {frame.f_code.co_name}"
