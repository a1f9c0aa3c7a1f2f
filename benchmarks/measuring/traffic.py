"""Count the bytes that operations over a vocabulary read and write: on a GPU they decide how long these take.

Knows PyTorch's operations. Counts them on any device, one operation after the other, as they run uncompiled. What an operation
reads more than once is counted once.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from measuring.synchronisations import asker

_ONLY_MEMORY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"}


class Traffic(TorchDispatchMode):  # type: ignore[no-untyped-call]  # its hook has no types
    """Count the bytes of tensors [..., V] while active, by the function of this project that asked for the operation.

    Attributes:
        bytes: `file function` -> bytes read and written.
    """

    def __init__(self, vocab_size: int) -> None:
        """`vocab_size`: V."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.bytes: Counter[str] = Counter()
        self._vocab_size = vocab_size

    @property
    def total(self) -> int:
        """Return the bytes of all of them."""
        return sum(self.bytes.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operation, and count its bytes."""
        found = func(*args, **(kwargs or {}))
        given, made = list(self._whole([args, kwargs])), list(self._whole(found))
        storages = {each.untyped_storage()._cdata for each in given}
        is_view = func.is_view and all(each.untyped_storage()._cdata in storages for each in made)  # `to` may copy
        if (given or made) and not is_view and func.overloadpacket.__name__ not in _ONLY_MEMORY:
            where, function = asker().split(":")[0], asker().split()[-1]
            self.bytes[f"{where} {function}"] += sum(map(_bytes_of, [*given, *made]))
        return found

    def _whole(self, found: Any) -> Iterator[torch.Tensor]:
        if isinstance(found, torch.Tensor):
            if found.dim() > 1 and found.shape[-1] == self._vocab_size:
                yield found
        elif isinstance(found, (list, tuple)):
            for each in found:
                yield from self._whole(each)


def _bytes_of(each: torch.Tensor) -> int:
    """Return the bytes of a tensor's elements; those that it repeats count once."""
    repeated = [size for size, stride in zip(each.shape, each.stride(), strict=True) if stride == 0]
    return each.numel() // max(1, torch.Size(repeated).numel()) * each.element_size()
