"""Describe what a measurement was made on."""

import argparse
import os
import shlex
import sys
import time
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch

from setblock.evaluation.sweeps import fingerprint
from setblock.roofline.hardware import HARDWARE, Hardware, hardware_of_device
from setblock.roofline.prediction import Precision, Prediction
from setblock.roofline.shape import shape_of

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def provenance() -> dict[str, object]:
    """Return the hardware, versions, date and command of this run."""
    made = fingerprint.provenance()
    command = shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    return {**made["hardware"], **made["versions"], "date": made["date"], "command": command}


def resident_bytes(field: str = "VmRSS", *, process: int | str = "self") -> int:
    """Return the bytes of a process in memory, now (`VmRSS`) or at most (`VmHWM`). Linux."""
    (line,) = (line for line in Path(f"/proc/{process}/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


@cache
def roofline_hardware(dtype: torch.dtype, *, quick: bool) -> Hardware:
    """Return what the roofline takes for this machine: the data sheet's figures of a GPU that the table knows, else
    measured ones. In miniature, where nothing is measured, any row of the table."""
    if quick:
        return HARDWARE["l4"]
    known = hardware_of_device(torch.cuda.get_device_name(DEVICE)) if DEVICE.type == "cuda" else None
    return known or measured_hardware(dtype, device=DEVICE)


def prediction_of(config: Any, options: argparse.Namespace) -> Prediction:
    """Return what the roofline says of the model of a config on this machine, in the type and miniature that options say."""
    return Prediction(
        shape=shape_of(config),
        hardware=roofline_hardware(getattr(torch, options.dtype), quick=options.quick),
        precision=Precision.of(options.dtype),
    )


_READ_BYTES = 2**28  # far more than any cache
_WIDTHS = {"cpu": (512, 1024, 2048), "cuda": (2048, 4096, 8192)}  # of square products


def measured_hardware(dtype: torch.dtype, *, device: torch.device, seconds: float = 0.5) -> Hardware:
    """Return the row that this machine would have in the roofline's table, with the peak of one type.

    Args:
        dtype: of the matrix products; their rate is taken for all types.
        device: the CPU, with as many threads as PyTorch uses, or a GPU.
        seconds: how long to repeat each of five small measurements. Of each, the fastest repeat counts.
    """
    with torch.inference_mode():
        source = torch.ones(_READ_BYTES // 4, device=device)
        target = torch.empty_like(source)
        read = _READ_BYTES / fastest(source.sum, device, seconds=seconds)
        copy = 2 * _READ_BYTES / fastest(lambda: target.copy_(source), device, seconds=seconds)
        squares = {width: torch.ones((width, width), dtype=dtype, device=device) for width in _WIDTHS[device.type]}
        peak = max(2 * n**3 / fastest(partial(torch.mm, a, a), device, seconds=seconds) for n, a in squares.items())
    peaks = dict.fromkeys((16, 32), peak)
    return Hardware(name="this-machine", bandwidth=max(read, copy), peaks=peaks, memory=_memory(device))


def fastest(action: Callable[[], object], device: torch.device, *, seconds: float) -> float:
    """Return the seconds of the fastest of at least three calls, after one that does not count."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    action()
    wait()
    times: list[float] = []
    while len(times) < 3 or sum(times) < seconds:
        started = time.perf_counter()
        action()
        wait()
        times.append(time.perf_counter() - started)
    return min(times)


def _memory(device: torch.device) -> float:
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
