"""Describe what a device is to a host that drives it.

Knows PyTorch's devices. Knows nothing of what is computed on them.
"""

import torch


def waits(device: torch.device) -> bool:
    """Return whether a host that reads a value has to wait for the device. On a CPU it reads what is there already."""
    return device.type != "cpu"
