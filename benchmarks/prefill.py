"""Time the first token of long prompts against Transformers' `generate`, for prompts fed whole and in parts.

    python benchmarks/prefill.py --out benchmarks/results/prefill.json

A model of random weights in SmolLM2-135M's shape. All ways take turns in one run. With `--out`, each length is saved as it is
done, and the same command continues. A table for people, JSON on the last line.
"""

import argparse
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from measuring.output import at_least_one, begin, finish, note, parser_of, resumed, write
from measuring.plain import transformers_answer
from measuring.subjects import SIZES, random_model, random_prompt
from measuring.timing import interleaved
from setblock.decoding.generate import open_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel

TRANSFORMERS = "Transformers generate"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    results = begin("prefill", options) | {"size": options.size}
    lengths = resumed(results, options, kept="lengths")
    for dtype in options.dtypes:
        sbd = random_model(SIZES[options.size], dtype=getattr(torch, dtype))
        results["parameters"] = sbd.num_parameters
        for length in options.lengths:
            name = f"{dtype}, {length} tokens"
            if name not in lengths:
                note(name)
                lengths[name] = {"dtype": dtype, "length": length, "ways": measured(sbd, length, options)}
                if options.out:
                    write(results, options.out)
    finish(results, options)


def measured(sbd: SBDModel, length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time the first token, and see whether it is the one that Transformers gives."""
    prompt = random_prompt(sbd, length)

    def theirs() -> int:
        return transformers_answer(sbd.model, prompt, max_new_tokens=1)[0]

    def ours(chunk: int) -> int:
        settings = DecodingSettings(method="ntp", max_new_tokens=1, prefill_chunk=chunk)
        batch = open_batch(sbd, [prompt], [settings])
        batch.run()
        return int(batch.state.answer_of(0)[0])

    ways: dict[str, Callable[[], int]] = {TRANSFORMERS: theirs, "ours, whole": partial(ours, length)}
    for chunk in options.chunks:
        if chunk < length:
            ways[f"ours, {chunk} at once"] = partial(ours, chunk)
    first = {name: way() for name, way in ways.items()}
    times = interleaved(ways, repeats=options.repeats, warmup=0)
    return {
        name: {
            "seconds": asdict(spread),
            "over_transformers": times[TRANSFORMERS].median / spread.median,
            "same_token": first[name] == first[TRANSFORMERS],
        }
        for name, spread in times.items()
    }


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--size", choices=SIZES, default="135m", help=f"of {', '.join(SIZES)} (135m)")
    add("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["bfloat16", "float32"])
    add("--lengths", nargs="+", type=int, default=[2048, 8192], help="tokens of the prompt (2048 8192)")
    add("--chunks", nargs="+", type=int, default=[128, 256, 512, 1024], help="tokens fed at once (128 256 512 1024)")
    add("--repeats", type=int, default=3, help="rounds that are timed, after one that is not (3)")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(size="tiny", lengths=[24], chunks=[8], repeats=1)
    at_least_one(parser, options, "lengths", "chunks", "repeats")
    return options


if __name__ == "__main__":
    main()
