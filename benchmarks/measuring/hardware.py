"""Describe what a measurement was made on."""

import argparse
import os
import shlex
import sys
from functools import cache
from pathlib import Path
from typing import Any

import torch

from setblock.evaluation.sweeps import fingerprint
from setblock.roofline.cost import Precision
from setblock.roofline.hardware import HARDWARE, Hardware, hardware_of_device, measured_hardware
from setblock.roofline.prediction import Prediction
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
