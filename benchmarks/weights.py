"""What weights of other types, and compilation, are worth: the passes of one model in float32, bfloat16 and int8.

    python benchmarks/weights.py --out benchmarks/results/weights.json

A model of about 100 million random weights, one request. Every variant's one-token pass, block pass and fused pass, as decoding
runs them, all interleaved in one run. int8 is torchao's weight-only quantisation (`setblock.load(quantization="int8")`),
with activations of the type before it; compiled is `SBDModel.compile()`, to whose passes belongs their padding to fixed sizes.
A table for people, and one line of JSON at the end.
"""

import argparse
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from hardware import provenance
from setblock.model.quantization import quantize
from setblock.model.sbd_model import SBDModel
from subjects import PassKind, parameters, passes, random_model
from timing import interleaved, seconds

KINDS: tuple[PassKind, ...] = ("one token", "block", "fused")
WEIGHTS = ("float32", "bfloat16", "float32 int8", "bfloat16 int8")


def main() -> None:
    """Measure, print, and write."""
    options = parse_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    variants = [f"{weights}{compiled}" for weights in options.weights for compiled in ("", " compiled")]
    actions: dict[str, Callable[[], object]] = {}
    first_seconds: dict[str, float] = {}
    for variant in variants:
        sbd = subject(variant, options)
        made = {kind: passes(sbd, kind, block_size=options.block_size, kv_length=options.kv_length) for kind in KINDS}
        for kind in KINDS:
            actions[f"{variant}/{kind}"] = made[kind]["library"]
        first_seconds[variant] = sum(seconds(made[kind]["library"]) for kind in KINDS)
    times = interleaved(actions, repeats=options.repeats)
    results: dict[str, Any] = {
        "benchmark": "weights",
        **provenance(),
        "parameters": parameters(subject("float32", options)),
        "vocabulary": options.vocabulary,
        "block_size": options.block_size,
        "kv_length": options.kv_length,
        "variants": {
            variant: {
                "first_seconds": round(first_seconds[variant], 3),
                **{kind: rounded(asdict(times[f"{variant}/{kind}"])) for kind in KINDS},
            }
            for variant in variants
        },
    }
    print_table(results)
    if options.out:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    print(json.dumps(results))


def subject(variant: str, options: argparse.Namespace) -> SBDModel:
    """The model, its weights as the variant's name says."""
    dtype = getattr(torch, variant.split()[0])
    sbd = random_model(hidden=options.hidden, layers=options.layers, vocabulary=options.vocabulary, dtype=dtype)
    if "int8" in variant:
        quantize(sbd.model)
    if "compiled" in variant:
        sbd.compile()
    return sbd


def rounded(spread: dict[str, Any]) -> dict[str, Any]:
    """To microseconds."""
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in spread.items()}


def print_table(results: dict[str, Any]) -> None:
    """One row a variant."""
    title = (
        f"{results['parameters'] / 1e6:.0f}M parameters, block size {results['block_size']}, "
        f"{results['kv_length']} cached positions; {results['gpu'] or results['cpu']}, {results['threads']} threads"
    )
    table = Table(title=title, caption="ms: median (quartiles); x: block over one token", title_justify="left")
    for column in ("weights", *KINDS, "x", "first passes, s"):
        table.add_column(column, justify="left" if column == "weights" else "right")
    for variant, row in results["variants"].items():
        cells = [
            f"{1e3 * row[kind]['median']:.1f} "
            f"({1e3 * row[kind]['lower_quartile']:.1f}-{1e3 * row[kind]['upper_quartile']:.1f})"
            for kind in KINDS
        ]
        ratio = row["block"]["median"] / row["one token"]["median"]
        table.add_row(variant, *cells, f"{ratio:.2f}", f"{row['first_seconds']:.1f}")
    Console().print(table)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", nargs="+", choices=WEIGHTS, default=list(WEIGHTS))
    parser.add_argument("--hidden", type=int, default=768)
    parser.add_argument("--layers", type=int, default=11)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    parser.add_argument("--block-size", type=int, default=16)
    parser.add_argument("--kv-length", type=int, default=256)
    parser.add_argument("--repeats", type=int, default=15)
    parser.add_argument("--threads", type=int, default=0, help="0: PyTorch's own choice")
    parser.add_argument("--out", help="a JSON file")
    return parser.parse_args()


if __name__ == "__main__":
    main()
