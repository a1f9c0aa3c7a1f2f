"""Describe what a measurement was made on."""

import os
import shlex
import sys
from functools import cache

import torch

from setblock.evaluation import fingerprint
from setblock.roofline.hardware import HARDWARE, Hardware
from setblock.roofline.machine import measured_hardware


def provenance() -> dict[str, object]:
    """Return the hardware, versions, date and command of this run."""
    made = fingerprint.provenance()
    command = shlex.join(["python", os.path.relpath(sys.argv[0]), *sys.argv[1:]])
    return {**made["hardware"], **made["versions"], "date": made["date"], "command": command}


@cache
def roofline_hardware(dtype: torch.dtype, *, device: torch.device, quick: bool = False) -> Hardware:
    """Return what the roofline takes for this machine: the data sheet's figures of a GPU that the table knows, else
    measured ones. In miniature, where nothing is measured, any row of the table."""
    if quick:
        return HARDWARE["l4"]
    if device.type == "cuda":
        words = torch.cuda.get_device_name(device).lower().replace("-", " ").split()
        for name in HARDWARE:
            if set(name.split("-")) <= set(words):
                return HARDWARE[name]
    return measured_hardware(dtype, device=device)
