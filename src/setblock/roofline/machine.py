"""Measure the bandwidth and the peak of this machine.

Knows PyTorch, which is imported when it is needed. What it measures is what simple kernels reach, not what data sheets say.
"""

import os
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from setblock.roofline.hardware import Hardware

if TYPE_CHECKING:
    import torch

THIS_MACHINE = "this-machine"
_READ_BYTES = 2**28  # far more than any cache
_WIDTHS = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of square products


def measured_hardware(dtype: "torch.dtype", *, device: "torch.device", seconds: float = 0.5) -> Hardware:
    """Return the row that this machine would have in the table, with the peak of one type.

    Args:
        dtype: of the matrix products; their rate is taken for all types.
        device: the CPU, with as many threads as PyTorch uses, or a GPU.
        seconds: how long to repeat each of five small measurements. Of each, the fastest repeat counts.
    """
    import torch

    with torch.inference_mode():
        bandwidth = _bandwidth(device, seconds)
        peak = max(_product_rate(width, dtype, device, seconds) for width in _WIDTHS[device.type])
    return Hardware(name=THIS_MACHINE, bandwidth=bandwidth, peaks=dict.fromkeys((16, 32), peak), memory=_memory(device))


def _bandwidth(device: "torch.device", seconds: float) -> float:
    """Return bytes per second, of reading only or of a copy, whichever is faster."""
    import torch

    source = torch.ones(_READ_BYTES // 4, device=device)
    target = torch.empty_like(source)
    read = _READ_BYTES / fastest(source.sum, device, seconds=seconds)
    copy = 2 * _READ_BYTES / fastest(lambda: target.copy_(source), device, seconds=seconds)
    return max(read, copy)


def _product_rate(width: int, dtype: "torch.dtype", device: "torch.device", seconds: float) -> float:
    """Return operations per second of a square product."""
    import torch

    a = torch.ones((width, width), dtype=dtype, device=device)
    return 2 * width**3 / fastest(lambda: a @ a, device, seconds=seconds)


def fastest(action: Callable[[], object], device: "torch.device", *, seconds: float, least: int = 3) -> float:
    """Return the seconds of the fastest of at least `least` calls, after one that does not count."""
    action()
    synchronise(device)
    times: list[float] = []
    while len(times) < least or sum(times) < seconds:
        started = time.perf_counter()
        action()
        synchronise(device)
        times.append(time.perf_counter() - started)
    return min(times)


def synchronise(device: "torch.device") -> None:
    """Wait for the device's queued work."""
    import torch

    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _memory(device: "torch.device") -> float | None:
    import torch

    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not a system that says
        return None
