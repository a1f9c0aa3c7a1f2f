"""Measure what the host does for each pass of the engine, in milliseconds of its CPU, beside what it launches.

    python benchmarks/host.py
    python benchmarks/host.py --out benchmarks/results/host.json

Four kinds of passes, at 1, 8 and 32 requests of a small random model:

- eager: whatever is outside of the model's forward pass. On a GPU each operation of it is a launch.
- captured: what is left beside the replay of a captured pass, which stands for one launch. It is read before the next pass.
- whole: the same, where requests don't stream: their text is decoded at the end, as `generate_batch` and `evaluate` have it.
- ahead: as captured, where the next pass is launched before one is read, so that the device works meanwhile.

A tape stands for the CUDA graph (`measuring/tape.py`), and its replay is not counted. Use an otherwise idle machine.
"""

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from typing import Any
from unittest.mock import patch

import torch

from measuring.output import begin, finish, note, parser_of, write
from measuring.subjects import SIZES, name_tokens, random_model, random_prompt
from measuring.synchronisations import as_on_an_accelerator
from measuring.tape import Tape
from measuring.timing import spread
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import launcher
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request

ROWS = (1, 8, 32)
KINDS = ("eager", "captured", "whole", "ahead")
METHODS = {
    "ntp": DecodingSettings(method="ntp"),
    "exact": DecodingSettings(method="exact", block_size=8, drafts="fixed"),
}


class TimedTape(Tape):  # type: ignore[no-untyped-call]  # its base has no types
    """A tape that measures its replays."""

    seconds = 0.0

    def replay(self) -> None:
        """See `Tape`."""
        started = time.process_time()
        super().replay()
        TimedTape.seconds += time.process_time() - started


def milliseconds(kind: str, rows: int, settings: DecodingSettings, *, passes: int) -> list[float]:
    """Return the milliseconds of each of the last `passes` passes."""
    sbd = random_model(dict(SIZES["tiny"]), dtype=torch.float32, block_size=8)
    sbd.end_of_text_ids = ()
    name_tokens(sbd)
    inside = 0.0
    started = 0.0

    def enter(*_: Any) -> None:
        nonlocal started
        started = time.process_time()

    def leave(*_: Any) -> None:
        nonlocal inside
        inside += time.process_time() - started

    sbd.model.register_forward_pre_hook(enter)
    sbd.model.register_forward_hook(leave)
    free = patch.object(launcher, "FREE_TOKENS", 10**9 if kind == "ahead" else 0)
    found: list[float] = []
    with free, as_on_an_accelerator():
        recorder: Callable[[], Tape] | None = None if kind == "eager" else TimedTape
        engine = Engine(sbd, EngineLimits(max_num_seqs=rows, kv_tokens=rows * 512), recorder=recorder)
        for number in range(rows):
            prompt = random_prompt(sbd, 16 + number)
            wanted = replace(settings, max_new_tokens=400)
            engine.submit(Request(str(number), prompt, wanted, streams=kind != "whole"))
        while len(found) < 20 + passes:
            before, beside = time.process_time(), inside + TimedTape.seconds
            engine.step()
            found.append((time.process_time() - before - (inside + TimedTape.seconds - beside)) * 1e3)
    return found[20:]  # prompts and captures come first


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print and write the table."""
    options = parse_options(arguments)
    results = begin("host", options)
    torch.set_num_threads(1)
    table: dict[str, Any] = {}
    results["milliseconds"] = table
    for method, settings in METHODS.items():
        for rows in options.rows:
            for kind in KINDS:
                times = milliseconds(kind, rows, settings, passes=options.passes)
                name, found = f"{method}, {rows} requests, {kind}", spread(times)
                table[name] = asdict(found)
                note(f"{name}: {found.median:.2f} ms ({found.lower_quartile:.2f} to {found.upper_quartile:.2f})")
                if options.out:
                    write(results, options.out)
    finish(results, options)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options."""
    parser = parser_of(__doc__)
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="requests at once")
    parser.add_argument("--passes", type=int, default=100, help="passes that are measured in each row")
    options = parser.parse_args(arguments)
    if options.quick:
        options.rows, options.passes = [2], 3
    return options


if __name__ == "__main__":
    main()
