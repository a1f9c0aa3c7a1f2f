"""Measure what a pass costs the host: what it launches, where it waits, and where the time goes."""

import argparse
from collections import Counter
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

import breakdown
from measuring.hardware import DEVICE
from measuring.subjects import SIZES, random_model, random_prompt
from setblock.decoding.generate import open_batch
from setblock.decoding.samplers import FixedCount
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel
from stages.piece import Pieces, once

_CALLS = ("LaunchKernel", "GraphLaunch", "Memcpy", "Synchronize")
"""Calls of CUDA's runtime, by a part of their names."""


def launch_pieces(options: argparse.Namespace) -> Pieces:
    """Yield operations and waits of a pass as they are counted on any device, and the calls of CUDA that it makes."""
    for size in ("tiny",) if options.quick else ("135m", "8b"):
        shared = once(partial(random_model, SIZES[size], dtype=getattr(torch, options.dtype)))
        for method in breakdown.METHODS:

            def piece(shared: Any = shared, method: Any = method) -> dict[str, Any]:
                sbd, tokens = shared(), 16 if options.quick else 128
                settings = DecodingSettings(
                    method=method, sampler=FixedCount(4), block_size=options.block_size, max_new_tokens=tokens
                )
                prompt = random_prompt(sbd, 8 if options.quick else 128)
                return breakdown.counted(sbd, prompt, settings) | {"calls": _calls(sbd, prompt, settings)}

            yield f"{size}, {method}", piece


def _calls(sbd: SBDModel, prompt: list[int], settings: DecodingSettings) -> dict[str, float]:
    """Return how often a pass calls CUDA, by kind; nothing without a GPU."""
    if DEVICE.type != "cuda":
        return {}
    batch = open_batch(sbd, [prompt], [settings])
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as profiled:
        batch.run()
    calls: Counter[str] = Counter()
    for event in profiled.key_averages():
        for kind in _CALLS:
            if event.key.startswith("cu") and kind in event.key:
                calls[kind] += event.count
    return {kind: count / batch.record.counts(0).total for kind, count in calls.items()}


def breakdown_pieces(options: argparse.Namespace) -> Pieces:
    """Yield where the time of a pass goes."""
    for size in ("tiny",) if options.quick else ("135m", "100m", "8b"):

        def piece(size: str = size) -> dict[str, Any]:
            arguments = ["--size", size, "--dtype", options.dtype, "--tokens", "16" if options.quick else "128"]
            its = breakdown.parse_options(arguments)
            sbd = random_model(SIZES[size], dtype=getattr(torch, options.dtype))
            return {"methods": {method: breakdown.measured(sbd, method, its) for method in breakdown.METHODS}}

        yield size, piece
