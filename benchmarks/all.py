"""Run all benchmarks of a machine without a GPU, one after the other, as `make bench` does. Each is a separate command,
and takes minutes.

    python benchmarks/all.py
    python benchmarks/all.py --only side_by_side passes
    python benchmarks/all.py --quick

Results go to benchmarks/results/, from where docs/performance_tables.py fills the tables of docs/performance.md and
docs/evidence/. The machine should do nothing else. With `--quick` all run in miniature in this one process, write
nothing, and only show that they work.
"""

import argparse
import importlib
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Command:
    """Describe one benchmark as it is run in full.

    Attributes:
        result: the file it writes, without its ending.
        program: its own name.
        arguments: beyond `--out`.
        minutes: about how long it takes on two cores; an estimate.
    """

    result: str
    program: str
    arguments: tuple[str, ...]
    minutes: int


# SBDModel.prepack is for CPUs; what a GPU should answer is asked by benchmarks/gpu.py.
LAYOUTS = "--weights,float32,float32 prepacked,bfloat16,bfloat16 prepacked"

COMMANDS = tuple(
    Command(result, program, tuple(arguments.split(",")) if arguments else (), minutes)
    for result, program, arguments, minutes in (
        ("passes", "passes", f"--size,400m,--block-sizes,1,8,16,{LAYOUTS}", 4),
        ("passes_bundled", "passes", f"--size,bundled,--block-sizes,1,2,4,8,16,{LAYOUTS}", 2),
        (
            "passes_weights",
            "passes",
            "--weights,float32,float32 int8,bfloat16,bfloat16 int8,--block-sizes,16,--compile",
            6,
        ),
        ("side_by_side_trained", "side_by_side", "", 3),
        (
            "side_by_side_orders",
            "side_by_side",
            "--threads,1,--checkpoint,models/smollm2-orders,--task,tasks/orders.py,--problems,40,--rounds,1,--answer-tokens,220,"
            "--block-size,16,--gammas,0.1,--prepack,--dtype,bfloat16,--llama-types,bf16,q8_0,q4_0",
            15,
        ),
        (
            "side_by_side_records",
            "side_by_side",
            "--threads,1,--checkpoint,models/smollm2-records,--task,tasks/extraction,--problems,40,--rounds,1,--answer-tokens,128,"
            "--block-size,16,--gammas,0.1,--prepack,--dtype,bfloat16,--llama-types,bf16,q8_0,q4_0",
            40,
        ),
        ("growth_batch", "growth", "--batches,1,2,4,8,16,32,--kv-lengths,512", 9),
        ("growth_kv", "growth", "--batches,1,8,--kv-lengths,128,512,2048,8192,--rounds,2", 9),
        ("breakdown", "breakdown", "", 2),
        ("training_step", "training_step", "", 9),
        (
            "training_step_adapter",
            "training_step",
            "--bf16,--prompt-shares,0.5,0.65,--rows,2,--repeats,3,--warmup,1",
            5,
        ),
        ("structured", "structured", "", 3),
    )
)


def main() -> None:
    """Run them."""
    options = parse_options()
    if options.quick:
        for program in dict.fromkeys(each.program for each in COMMANDS):
            started = time.monotonic()
            importlib.import_module(program).main(["--quick"])
            print(f"== {program}: {time.monotonic() - started:.1f} s", flush=True)
        return
    for each in COMMANDS:
        if options.only and each.program not in options.only and each.result not in options.only:
            continue
        out = options.results / f"{each.result}.json"
        print(f"== {each.result}: about {each.minutes} minutes", flush=True)
        command = [sys.executable, str(HERE / f"{each.program}.py"), *each.arguments, "--out", os.path.relpath(out)]
        subprocess.run(command, check=True)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    known = sorted({name for each in COMMANDS for name in (each.program, each.result)})
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=known, metavar="NAME", help=f"of {', '.join(known)}")
    parser.add_argument("--results", type=Path, default=HERE / "results", help="where to (benchmarks/results)")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: checks that all run, measures nothing")
    return parser.parse_args()


if __name__ == "__main__":
    main()
