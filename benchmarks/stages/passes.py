"""Measure passes next to the roofline's, and whole decoding."""

import argparse
import itertools
from dataclasses import asdict
from typing import Any

import torch

import growth
from measuring.hardware import prediction_of
from measuring.subjects import SIZES, PassKind, noisy_cache, passes, random_model
from measuring.timing import interleaved
from stages.piece import Pieces, once

KINDS: tuple[PassKind, ...] = ("one token", "block", "fused")


def pass_pieces(options: argparse.Namespace) -> Pieces:
    """Yield block passes over one-token passes, with the roofline's."""
    shared = once(lambda: random_model(SIZES[options.size], dtype=getattr(torch, options.dtype), block_size=64))
    block_sizes = (1, 4) if options.quick else (1, 2, 4, 8, 16, 32, 64)
    for kv_length, batch in itertools.product(options.kv_lengths, options.batches):

        def piece(kv_length: int = kv_length, batch: int = batch) -> dict[str, Any]:
            sbd, at = shared(), {"batch": batch, "kv_length": kv_length}
            prediction = prediction_of(sbd.model.config, options)
            actions, predicted = {}, {}
            # One cache for all: at the longest and largest, each of its own would not fit
            cache = noisy_cache(sbd, batch=batch, cached=kv_length, capacity=kv_length + 2 * max(block_sizes))
            for k, kind in itertools.product(block_sizes, KINDS):
                if (kind == "one token" and k != 1) or (kind == "fused" and k != options.block_size):
                    continue
                for column, action in passes(sbd, kind, block_size=k, cache=cache, **at).items():
                    actions[f"{kind} {k}/{column}"] = action
                fed = 2 * k if kind == "fused" else k
                predicted[f"{kind} {k}"] = prediction.seconds(fed, outputs=k, **at)
            times = interleaved(actions, repeats=options.repeats)
            return {
                name: {"roofline": expected, **{c: asdict(times[f"{name}/{c}"]) for c in ("library", "model")}}
                for name, expected in predicted.items()
            }

        yield f"batch {batch}, {kv_length} cached", piece


def growth_pieces(options: argparse.Namespace) -> Pieces:
    """Yield whole decoding over batches and lengths."""
    numbers = ["--tokens", "16", "--rounds", "1"] if options.quick else ["--tokens", "48", "--rounds", "3"]
    sizes = ["--size", options.size, "--dtype", options.dtype, "--gib", "90"]
    nfe = ["--nfe", *(["4"] if options.quick else ["2", "4", "8"])]
    its = growth.parse_options([*sizes, *numbers, *nfe])
    its.quick = options.quick
    shared = once(lambda: random_model(SIZES[options.size], dtype=getattr(torch, options.dtype)))
    for kv_length, batch in itertools.product(options.kv_lengths, options.batches):

        def piece(kv_length: int = kv_length, batch: int = batch) -> dict[str, Any]:
            return growth.cell(shared(), batch, kv_length, its)

        yield f"batch {batch}, {kv_length} cached", piece
