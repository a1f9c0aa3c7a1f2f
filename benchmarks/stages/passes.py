"""Measure passes: with the roofline's, in each way in which a GPU can be given them, part by part, and in whole decoding."""

import argparse
import itertools
from collections.abc import Callable
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

import breakdown
import growth
from measuring import checks
from measuring.hardware import DEVICE, prediction_of
from measuring.subjects import SIZES, PassKind, compiled, noisy_cache, passes, random_model
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


def graph_pieces(options: argparse.Namespace) -> Pieces:
    """Yield the model's pass alone: launched kernel by kernel, replayed as a CUDA graph, compiled, and compiled in a
    graph."""
    shared = once(lambda: random_model(SIZES[options.size], dtype=getattr(torch, options.dtype)))
    backend = "eager" if options.quick else "inductor"
    fast = once(lambda: compiled(shared(), backend=backend))
    for kind, batch in itertools.product(KINDS, options.batches[:1] + options.batches[-2:-1]):

        def piece(kind: PassKind = kind, batch: int = batch) -> dict[str, Any]:
            at = {"block_size": options.block_size, "kv_length": options.kv_lengths[0], "batch": batch}
            eager, quick = passes(shared(), kind, **at), passes(fast(), kind, **at)
            actions = {
                "eager": eager["model"],
                "CUDA graph": graphed(eager["model"]),
                "compiled": quick["model"],
                "compiled, CUDA graph": graphed(quick["model"]),
                "library, eager": eager["library"],
                "library, compiled": quick["library"],
            }
            expected = actions["eager"]().clone()
            off = {name: checks.difference(expected, actions[name]()) for name in list(actions)[1:4]}
            times = interleaved(actions, repeats=options.repeats)
            return {
                "times": {name: asdict(each) for name, each in times.items()},
                "logits_differ_by": off,
                "passed": max(off.values()) < 0.05,
            }

        yield f"{kind}, batch {batch}", piece


def graphed(action: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """Return the same, captured as a CUDA graph and replayed; without a GPU, as it is."""
    if DEVICE.type != "cuda":
        return action
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = action()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def breakdown_pieces(options: argparse.Namespace) -> Pieces:
    """Yield where the time of a pass goes."""
    for size in ("tiny",) if options.quick else ("135m", "100m", "8b"):

        def piece(size: str = size) -> dict[str, Any]:
            arguments = ["--size", size, "--dtype", options.dtype, "--tokens", "16" if options.quick else "128"]
            its = breakdown.parse_options(arguments)
            sbd = random_model(SIZES[size], dtype=getattr(torch, options.dtype))
            return {"methods": {method: breakdown.measured(sbd, method, its) for method in breakdown.METHODS}}

        yield size, piece


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
