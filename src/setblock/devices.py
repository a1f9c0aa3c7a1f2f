"""Describe what a device is to a host that drives it, and read values of it late.

Knows PyTorch's devices. Knows nothing of what is computed on them.
"""

from typing import Any

import torch
from torch import Tensor


def waits(device: torch.device) -> bool:
    """Return whether a host that reads a value has to wait for the device. On a CPU it reads what is there already."""
    return device.type != "cpu"


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
