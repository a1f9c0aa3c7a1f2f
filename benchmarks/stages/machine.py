"""Measure the machine, and check that what is fast on it is right."""

import argparse
from functools import partial
from typing import Any

import torch

import growth
from measuring import checks
from measuring.hardware import DEVICE, measured_hardware, roofline_hardware
from stages.piece import Pieces


def machine_pieces(options: argparse.Namespace) -> Pieces:
    """Yield what this machine does."""

    def piece() -> dict[str, Any]:
        dtype = getattr(torch, options.dtype)
        taken = roofline_hardware(dtype, quick=options.quick)
        reached = taken if options.quick else measured_hardware(dtype, device=DEVICE, seconds=1)
        return {
            "reached": growth.hardware_json(reached),
            "roofline": growth.hardware_json(taken),
            "memory": reached.memory,
            "capability": torch.cuda.get_device_capability() if DEVICE.type == "cuda" else None,
            "cuda": torch.version.cuda,
        }

    yield "figures", piece


def check_pieces(options: argparse.Namespace) -> Pieces:
    """Yield `measuring.checks`; in miniature nothing is compiled."""
    size, tokens = ("tiny", 12) if options.quick else ("100m", 128)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        row_length = 32 if options.quick else 1024
        yield f"FlexAttention is dense, {name}", partial(checks.flex_is_dense, size, dtype, row_length=row_length)
        yield f"exact is plain, {name}", partial(checks.exact_is_plain, size, dtype, tokens=tokens)
        backend = "eager" if options.quick else "inductor"
        yield f"compiled is eager, {name}", partial(checks.compiled_is_eager, size, dtype, backend=backend)
    yield "rows are alone", partial(checks.rows_are_alone, size, tokens=tokens)
