"""Time an adapter on the future block against copied drafts: one request at a time, the ways in turn for each prompt.

    python experiments/adapter_seconds.py runs/smollm2-lossless --out experiments/results/adapter_seconds.json

All ways write plain decoding's text. `copies` is the model without the adapter, as `smollm2` comes: it copies its drafts.
`adapter` is the model with it and the same draft text: how much it drafts, and by what, is decided pass by pass. `adapter
alone` copies nothing and always drafts whole blocks. `block alone` drafts such blocks with the mask token and without the
adapter: its passes have about as many tokens, so that the seconds of a pass show what the adapter costs.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from itertools import islice
from pathlib import Path
from typing import Any

import torch

import setblock
from setblock.data.tasks import task_named
from setblock.decoding.answer.text import encode_prompt
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.evaluation.run import prompts_of
from setblock.model.protocol.facts import CONFIG_KEY
from setblock.model.sbd_model import SBDModel

TASKS = ("humaneval", "instructions")


def main() -> None:
    """Measure, print, and write."""
    options = parse_options()
    torch.set_num_threads(options.threads)
    base, adapted, bare = loaded(options.base), loaded(options.model), without_adapter(options.model)
    adapted.draft_text = base.draft_text
    limit = DecodingSettings(max_new_tokens=options.tokens)
    alone = DecodingSettings(
        max_new_tokens=options.tokens, drafts="fixed", draft_lookup=0, block_size=options.block_size
    )
    ways = {
        "plain": (base, DecodingSettings(max_new_tokens=options.tokens, method="ntp")),
        "copies": (base, limit),
        "adapter": (adapted, limit),
        "adapter alone": (adapted, alone),
        "block alone": (bare, alone),
    }
    found = {task: measured(ways, task, options.limit) for task in TASKS}
    for task, rows in found.items():
        print(
            f"{task}, {options.limit} requests\nway              passes  tokens a pass  ms a pass  speed over copies  same"
        )
        for way, row in rows.items():
            figures = f"{row['tokens_per_pass']:15.3f}{row['ms_per_pass']:11.1f}{row['speed_over_copies']:19.2f}"
            print(f"{way:16}{row['passes']:7}{figures}{row['same']:6}")
    if options.out is not None:
        options.out.write_text(json.dumps({"options": vars(options) | {"out": None}, "found": found}, indent=1) + "\n")


def measured(
    ways: dict[str, tuple[SBDModel, DecodingSettings]], task_name: str, count: int
) -> dict[str, dict[str, Any]]:
    """Return each way's seconds and passes on the first prompts of a task, and how many texts were plain decoding's."""
    task, (model, _) = task_named(task_name), ways["plain"]
    asked, raw = prompts_of(task, list(islice(task.examples("test", seed=0), count + 1)), model)
    prompts = [encode_prompt(model.tokenizer, each, raw=raw) for each in asked]
    taken: dict[str, list[tuple[float, int, int, list[int]]]] = defaultdict(list)
    for number, prompt in enumerate(prompts):
        print(f"{task_name}: {number} of {count}", file=sys.stderr)
        order = list(ways)
        for way in order[number % len(order) :] + order[: number % len(order)]:
            using, settings = ways[way]
            started = time.perf_counter()
            [answer] = generate_batch(using, [prompt], settings=settings)
            seconds = time.perf_counter() - started
            if number:  # the first warms up
                taken[way].append((seconds, answer.num_forwards - 1, answer.num_tokens - 1, list(answer.token_ids)))
    plain = taken["plain"]
    rows = {}
    for way in ways:
        passes, tokens = sum(each[1] for each in taken[way]), sum(each[2] for each in taken[way])
        over = [mine[0] / other[0] for mine, other in zip(taken["copies"], taken[way], strict=True)]
        rows[way] = {
            "seconds": sum(each[0] for each in taken[way]),
            "passes": passes,
            "tokens_per_pass": tokens / passes,
            "ms_per_pass": statistics.median(1000 * each[0] / (each[1] + 1) for each in taken[way]),
            "speed_over_copies": statistics.median(over),
            "same": sum(mine[3] == other[3] for mine, other in zip(taken[way], plain, strict=True)),
        }
    return rows


def loaded(path: str) -> SBDModel:
    """Return a model as the command line runs it on a CPU."""
    model = setblock.load(path, dtype=torch.bfloat16)
    model.prepack()
    return model


def without_adapter(path: str) -> SBDModel:
    """Return the model as if its blocks had no adapter."""
    with tempfile.TemporaryDirectory() as folder:
        for file in Path(path).glob("*.*"):
            if file.is_file() and file.name != "config.json":
                (Path(folder) / file.name).symlink_to(file.resolve())
        config = json.loads((Path(path) / "config.json").read_text())
        del config[CONFIG_KEY]["noisy_adapter"]
        (Path(folder) / "config.json").write_text(json.dumps(config))
        return loaded(folder)


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("model", help="folder of a model with an adapter on its future block")
    add("--base", default="smollm2", help="the model without it, with its draft text (smollm2)")
    add("--limit", type=int, default=40, help="prompts of a task, after one that is not counted (40)")
    add("--tokens", type=int, default=128, help="at most, of an answer (128)")
    add("--block-size", type=int, default=8)
    add("--threads", type=int, default=1)
    add("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
