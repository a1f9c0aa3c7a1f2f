"""Time an adapter with copies, copies alone and plain decoding: one request at a time, all ways in turns, in an order
that changes.

    python experiments/adapter_speed.py --adapter models/smollm2-lossless --limit 16 --threads 2

Prints, for each task, times as fast as plain decoding (of all seconds, and the median over prompts), tokens a pass without the
prefill, and how many texts are plain decoding's. The first two prompts warm up. The machine should do nothing else.
"""

import argparse
import sys
import time
from pathlib import Path
from statistics import median

import torch

import setblock
from setblock.decoding.answer.generation import Generation
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings.table import DecodingSettings

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from load import SUBJECTS, loaded, prompts_for

WARMUP = 2


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--adapter", type=Path, default=Path("models/smollm2-lossless"), metavar="FOLDER")
    parser.add_argument("--limit", type=int, default=16, help="prompts of each task (16)")
    parser.add_argument("--threads", type=int, help="PyTorch's threads (its own choice)")
    options = parser.parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    base = loaded("smollm2")
    adapted = setblock.load("smollm2", adapter=options.adapter, dtype=torch.bfloat16)
    if adapted.device.type == "cpu":
        adapted.prepack()
    settings = DecodingSettings(max_new_tokens=128)
    plain = DecodingSettings(max_new_tokens=128, method="ntp")
    ways = {"plain": (base, plain), "copies": (base, settings), "copies and adapter": (adapted, settings)}
    for name in ("smollm2, HumanEval", "smollm2, English"):
        found: dict[str, list[tuple[float, Generation]]] = {way: [] for way in ways}
        for number, prompt in enumerate(prompts_for(SUBJECTS[name], options.limit + WARMUP, 0)):
            first = number % len(ways)
            for way in [*ways, *ways][first : first + len(ways)]:
                started = time.perf_counter()
                (answer,) = generate_batch(ways[way][0], [prompt], settings=ways[way][1])
                if number >= WARMUP:
                    found[way].append((time.perf_counter() - started, answer))
        print(name)
        for way, answers in found.items():
            ratios = [theirs / mine for (theirs, _), (mine, _) in zip(found["plain"], answers, strict=True)]
            gain = sum(each for each, _ in found["plain"]) / sum(each for each, _ in answers)
            tokens = sum(each.num_tokens - 1 for _, each in answers)
            passes = sum(each.passes.decoding for _, each in answers)
            pairs = zip(answers, found["plain"], strict=True)
            same = sum(mine.token_ids == theirs.token_ids for (_, mine), (_, theirs) in pairs)
            print(
                f"  {way}: {gain:.2f} (median {median(ratios):.2f}), {tokens / passes:.2f} tokens a pass, "
                f"{same} of {len(answers)} texts the same",
                flush=True,
            )


if __name__ == "__main__":
    main()
