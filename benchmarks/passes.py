"""Measure what a pass costs: over one token, over a block, and the fused pass over two blocks, for weights of several
types.

    python benchmarks/passes.py --size 400m --weights float32 bfloat16 --out benchmarks/results/passes.json
    python benchmarks/passes.py --weights bfloat16 "bfloat16 int8" --compile --out benchmarks/results/passes_weights.json

A model of random weights or, as size `bundled`, that of the package; one request by default. All passes of all variants take
turns in one run.

    library   the pass as decoding plans, feeds and reads it, with building inputs and mask
    model     the same forward pass alone, its inputs, mask and cache slots made beforehand

int8 is torchao's weight-only quantisation (`setblock.load(quantization="int8")`), with activations of the type before it,
prepacked is `SBDModel.prepack()`, on a CPU;
compiled is the model by `SBDModel.compile()`, in both columns. Predicted is the roofline on this
machine's bandwidth and peak: measured first on a CPU, the data sheet's on a GPU. Eq. 16 of the paper turns the library's
times into speed-ups. A table for people, JSON on the last line.
"""

import argparse
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

import setblock
from measuring.hardware import roofline_hardware
from measuring.output import at_least_one, begin, finish, note, parser_of
from measuring.subjects import SIZES, PassKind, compiled, passes, random_model
from measuring.timing import Spread, interleaved, seconds
from setblock.model.loading.named import BUNDLED_MODEL
from setblock.model.sbd_model import SBDModel
from setblock.model.weights import quantize
from setblock.roofline.prediction import Precision, Prediction, predicted_speedup
from setblock.roofline.shape import shape_of

WEIGHTS = tuple(f"{dtype}{stored}" for stored in ("", " prepacked", " int8") for dtype in ("float32", "bfloat16"))
NFE_SPEEDUPS = (2, 4, 8)
BUNDLED = "bundled"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    results = begin("passes", options) | measured(options)
    for variant, each in results["variants"].items():
        note(f"{variant}, eq. 16: {', '.join(f'{speedup:.2f} for {nfe}' for nfe, speedup in each['eq_16'].items())}")
    finish(results, options)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of every kind of pass of every variant."""
    # 1. The variants, and what each takes for its first passes
    actions: dict[str, Callable[[], object]] = {}
    first: dict[str, float] = {}
    size = 0
    for variant in variants_of(options):
        note(variant)
        sbd = subject(variant, options)
        size = max(size, sbd.num_parameters)
        for name, kind, k in wanted(options):
            made = passes(sbd, kind, block_size=k, kv_length=options.kv_length, batch=options.batch)
            for column, action in made.items():
                actions[f"{variant}/{name}/{column}"] = action
                first[variant] = first.get(variant, 0.0) + seconds(action)

    # 2. The times, in turns, beside the roofline's
    times = interleaved(actions, repeats=options.repeats)
    return {
        "size": options.size,
        "parameters": size,
        "batch": options.batch,
        "kv_length": options.kv_length,
        "block_size": options.block_size,
        "variants": {
            variant: {"first_seconds": first[variant], **variant_rows(variant, times, options)}
            for variant in variants_of(options)
        },
    }


def variants_of(options: argparse.Namespace) -> list[str]:
    """Return names of weights, and of the same compiled."""
    return [f"{each}{suffix}" for each in options.weights for suffix in ("", " compiled")[: 1 + options.compile]]


def wanted(options: argparse.Namespace) -> list[tuple[str, PassKind, int]]:
    """Return name, kind and block size of each pass."""
    kinds: list[tuple[str, PassKind, int]] = [("one token", "one token", 1)]
    for k in sorted({*options.block_sizes, options.block_size}):
        kinds.append((f"block {k}", "block", k))
        if k in (options.block_size, *options.fused):
            kinds.append((f"fused {k}", "fused", k))
    return kinds


def subject(variant: str, options: argparse.Namespace) -> SBDModel:
    """Return the model, its weights as the variant's name says."""
    dtype = getattr(torch, variant.split()[0])
    if options.size == BUNDLED:
        sbd = setblock.load(BUNDLED_MODEL, dtype=dtype)
    else:
        sbd = random_model(SIZES[options.size], dtype=dtype, block_size=max(options.block_size, *options.block_sizes))
    if "int8" in variant:
        quantize(sbd.model)
    if "prepacked" in variant:
        sbd.prepack()
    return compiled(sbd, backend=options.backend) if "compiled" in variant else sbd


def config_of(size: str) -> dict[str, Any]:
    """Return the config of a size's models."""
    found: dict[str, Any] = json.loads((BUNDLED_MODEL / "config.json").read_text()) if size == BUNDLED else SIZES[size]
    return found


def variant_rows(variant: str, times: dict[str, Spread], options: argparse.Namespace) -> dict[str, Any]:
    """Return times of one variant's passes, what the roofline says of them, and what eq. 16 makes of them."""
    dtype, k = variant.split()[0], options.block_size
    hardware = roofline_hardware(getattr(torch, dtype), quick=options.quick)
    precision = Precision.of(dtype, weights="int8" if "int8" in variant else None)
    config = {**config_of(options.size), "max_position_embeddings": 1}
    prediction = Prediction(shape=shape_of(config), hardware=hardware, precision=precision)
    at = {"batch": options.batch, "kv_length": options.kv_length}
    rows = {}
    for name, kind, size in wanted(options):
        fed = 2 * size if kind == "fused" else size
        row: dict[str, Any] = {"roofline": prediction.seconds(fed, outputs=size, **at)}
        for column in ("library", "model"):
            spread = times[f"{variant}/{name}/{column}"]
            one = times[f"{variant}/one token/{column}"].median
            row |= {column: asdict(spread), f"{column}_over_one_token": spread.median / one}
        rows[name] = row
    cost = {
        name: times[f"{variant}/{key}/library"].median
        for name, key in (("one_token", "one token"), ("block", f"block {k}"), ("fused", f"fused {k}"))
    }
    return {
        "bandwidth": hardware.bandwidth,
        "peak": hardware.peak(precision.linear_bits),
        "passes": rows,
        "eq_16": {str(nfe): predicted_speedup(k / nfe, block_size=k, **cost) for nfe in NFE_SPEEDUPS if nfe <= k},
    }


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--size", choices=[*SIZES, BUNDLED], default="100m", help=f"of {', '.join([*SIZES, BUNDLED])} (100m)")
    add(
        "--weights",
        nargs="+",
        choices=WEIGHTS,
        default=["float32", "bfloat16"],
        metavar="W",
        help=f"of {', '.join(WEIGHTS)}",
    )
    add("--compile", action="store_true", help="each also through torch.compile; compiles for minutes")
    add("--backend", default="inductor", help="of torch.compile (inductor)")
    add("--block-sizes", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32], metavar="K", help="timed (1 2 4 8 16 32)")
    add("--fused", nargs="*", type=int, default=[], metavar="K", help="of which the fused pass is timed, too")
    add("--block-size", type=int, default=16, help="of eq. 16, its fused pass is always timed (16)")
    add("--batch", type=int, default=1, help="requests (1)")
    add("--kv-length", type=int, default=256, help="cached positions of each (256)")
    add("--repeats", type=int, default=25, help="timed repeats of each pass (25)")
    options = parser.parse_args(arguments)
    if options.quick:
        weights = ["float32", "float32 int8", *["float32 prepacked"] * (not torch.cuda.is_available())]
        tiny = {"size": "tiny", "weights": weights, "block_sizes": [1, 4], "block_size": 4}
        vars(options).update(tiny, kv_length=32, repeats=2)
    at_least_one(parser, options, "block_sizes", "block_size", "batch", "kv_length", "repeats")
    if any("prepacked" in weights for weights in options.weights) and torch.cuda.is_available():
        parser.error("--weights prepacked does not go with a GPU")
    return options


if __name__ == "__main__":
    main()
