"""Measure everything that a GPU should answer, in stages that are saved piece by piece: a run that is stopped resumes
where it was.

    python benchmarks/gpu.py --out benchmarks/results/gpu.json
    python benchmarks/gpu.py --stages checks passes --minutes 9 --out benchmarks/results/gpu.json
    python benchmarks/gpu.py --half-hour --out benchmarks/results/gpu.json
    python benchmarks/gpu.py --quick

Needs no network. The most valuable stages come first. `--minutes` begins no piece after so many; only compiling and
training take more than one or two. A piece that fails is reported, saved with its error and tried again by the next run; the
exit status then is 1.

- graphs: captured passes of the engine: that none waits, that texts are plain decoding's, how long one launch takes at 8B and
  with SmolLM2, attention over pages, draws, and a profile. What is not measured yet comes first.
- machine: bandwidth and peak that simple kernels reach, and the data sheet's.
- checks: FlexAttention's forward and backward pass, exact mode, compiled passes and batches compute what plain ones do.
- passes: an 8B model in bfloat16: passes over blocks of 1 to 64, batches of 1 to 32, two lengths; and the roofline.
- growth: whole decoding of the 8B model at batches of 1 to 32, and Transformers' `generate` and the roofline.
- training: a training step at rows of 8k to 32k tokens through FlexAttention, and plain next-token training.
- recipe: the recipes of `--recipes`: trained, then decoded by all methods. With `--training-minutes`, some steps are timed
  first, and the number of steps fills so many minutes.

`--half-hour` is for one visit to a GPU: the checks, 20 minutes of `recipes/smollm2-extraction-sbd.yaml`, what that decodes, and
then the other stages until the half hour is over. It needs `setblock fetch smollm2-base` and the extra `tasks`.

Without a GPU the stages run in miniature only (`--quick`), which shows that they work and measures nothing.
"""

import argparse
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from measuring.hardware import DEVICE
from measuring.output import begin, finish, note, parser_of, resumed, rounded, write
from measuring.subjects import SIZES
from stages import STAGES

RECIPE = Path(__file__).parent.parent / "recipes" / "smollm2-extraction-sbd.yaml"
HALF_HOUR = ("machine", "checks", "recipe", "training", "passes", "growth")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stages' pieces that are not there yet, until the time is up."""
    options = parse_options(arguments)
    results = begin("gpu", options)
    stages = resumed(results, options, kept="stages")
    failed = 0
    for stage in options.stages:
        done = stages.setdefault(stage, {})
        for name, piece in STAGES[stage](options):
            if name in done and "error" not in done[name]:
                continue
            if time.monotonic() > options.until:
                note("the time is up; the same command goes on")
                break
            note(f"{stage}: {name}")
            started = time.monotonic()
            try:
                done[name] = piece()
            except Exception as error:  # the other pieces are worth having; this one is reported, and tried again
                traceback.print_exc()
                done[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            failed += not done[name].get("passed", "error" not in done[name])
            print(f"   {time.monotonic() - started:.1f} s: {_brief(done[name])}", flush=True)
            if options.out:
                write(results, options.out)
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()
    finish(results, options)
    if failed:
        raise SystemExit(f"{failed} pieces failed")


def _brief(row: dict[str, Any]) -> str:
    text = str(rounded(row))
    return text if len(text) < 300 else f"{text[:300]}..."


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--stages", nargs="+", choices=STAGES, default=list(STAGES), metavar="STAGE", help=f"of {', '.join(STAGES)}")
    add("--minutes", type=float, default=9, help="begin no piece after this many (9)")
    add("--size", choices=SIZES, default="8b", help="of the model whose passes and decoding are timed (8b)")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32], metavar="B")
    add("--kv-lengths", nargs="+", type=int, default=[1024, 8192], metavar="L")
    add("--block-size", type=int, default=16)
    add("--repeats", type=int, default=20, help="of each pass (20)")
    add("--recipes", nargs="+", type=Path, help="of the stage `recipe`, in order; the last one's model is decoded with")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="of those recipes, as of setblock train")
    add("--runs", type=Path, default=Path(), help="the folder that recipes name their outputs from")
    add("--training-minutes", type=float, help="of each recipe, by timing its first steps (as many steps as it says)")
    add("--half-hour", action="store_true", help="the checks, 20 minutes of training, and what fits after it")
    options = parser.parse_args(arguments)
    if options.half_hour:
        options.stages = list(HALF_HOUR)
        options.minutes = 28  # the last piece takes one or two
        options.training_minutes = 20 if options.training_minutes is None else options.training_minutes
        options.recipes = options.recipes or [RECIPE]
        options.set = ["training.use_cpu=false", *options.set]
    if options.quick:
        tiny = {
            "size": "tiny",
            "dtype": "float32",
            "batches": [1, 2],
            "kv_lengths": [32],
            "block_size": 4,
            "repeats": 1,
        }
        vars(options).update(tiny)
    elif DEVICE.type == "cpu":
        parser.error("there is no GPU; --quick runs all stages in miniature")
    options.until = time.monotonic() + 60 * options.minutes
    return options


if __name__ == "__main__":
    main()
