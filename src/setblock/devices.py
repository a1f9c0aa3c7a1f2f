"""Describe what a device is to a host that drives it, and read values of it late.

Knows PyTorch's devices. Knows nothing of what is computed on them.
"""

import ctypes
import os
from typing import Any

import torch
from torch import Tensor


def waits(device: torch.device) -> bool:
    """Return whether a host that reads a value has to wait for the device. On a CPU it reads what is there already."""
    return device.type != "cpu"


def keep_freed_memory() -> None:
    """Have malloc keep what is freed, for the tensors of the next pass. Does nothing without glibc, or where the environment
    sets malloc's thresholds.

    A pass allocates tensors of megabytes and frees them. By default, glibc gives each back to the system at once, and the next
    one begins with a page fault for every 4 kB. With 32 rows on a CPU that took a third of a pass. The process then keeps the
    memory of its largest pass until it ends.
    """
    if any(name in os.environ for name in ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")):
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        for option, value in _MALLOC_OPTIONS:
            mallopt(option, value)


_MALLOC_OPTIONS = (
    (-3, 1 << 30),  # M_MMAP_THRESHOLD: no mapping of its own for what is smaller than 1 GiB
    (-1, (1 << 31) - 1),  # M_TRIM_THRESHOLD: nothing is given back below 2 GiB
    (-8, 1),  # M_ARENA_MAX: the threads share one heap; others could hold no large tensors
)


class HostCopy:
    """Copy a tensor to the host, beginning at once. Whoever reads it when the device has since been given a further
    pass does not make the device wait: that pass is running while the host reads."""

    def __init__(self, values: Tensor) -> None:
        """Begin to copy `values`, which nobody may change in place."""
        self._values, self._arrived = values, None
        if values.device.type != "cpu":
            self._values = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
            self._values.copy_(values, non_blocking=True)
            self._arrived = torch.Event(device=values.device)
            self._arrived.record()

    def read(self) -> list[Any]:
        """Return the values, as soon as they have arrived."""
        if self._arrived is not None:
            self._arrived.synchronize()
        read: list[Any] = self._values.tolist()
        return read
