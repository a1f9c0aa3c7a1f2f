"""Compare exact mode with plain decoding of the same model, on prompts that many answers fit, in half precision.

    python experiments/exact_is_plain.py --model smollm2 --out experiments/results/exact_is_plain.jsonl

In half precision logits often differ in their last bit only, so a pass that sums in another order gives another text. Each
prompt is decoded plainly and exactly, alone and in a batch, and by Transformers' greedy `generate`. Appends one line of JSON
for each prompt. The same command continues an interrupted run. Prints one line of JSON: the shares of equal texts
in all lines of the file.
"""

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from rich.progress import track

import setblock
from setblock.data.tasks import Example, Task, task_named
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings import DecodingSettings, Method
from setblock.decoding.text import Prompt, encode_prompt
from setblock.model.sbd_model import SBDModel

PAIRS = {
    "exact_is_plain_alone": ("exact alone", "plain alone"),
    "exact_is_plain_in_batches": ("exact in batches", "plain in batches"),
    "plain_in_batches_is_plain_alone": ("plain in batches", "plain alone"),
    "exact_in_batches_is_plain_alone": ("exact in batches", "plain alone"),
    "plain_is_generate": ("plain alone", "generate"),
    "exact_is_generate": ("exact alone", "generate"),
}
"""What is compared."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Decode what is missing, append it, print the shares."""
    options = parse_options(arguments)
    done = {(each["task"], each["prompt"]) for each in lines_of(options.out)}
    missing = [
        (task, first, batch)
        for task in map(task_named, options.tasks)
        for first, batch in batches(task, options)
        if (task.name, first + len(batch) - 1) not in done
    ]
    if missing:
        model = setblock.load(options.model, dtype=getattr(torch, options.dtype))
        if options.prepack:
            model.prepack()
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for task, first, batch in track(missing, description="batches", transient=True):
            lines = [json.dumps(line) + "\n" for line in compared(model, task, first, batch, options)]
            with options.out.open("a", encoding="utf-8") as file:
                file.write("".join(lines))
    print(json.dumps(shares(lines_of(options.out))))


def compared(
    model: SBDModel, task: Task[Any], first: int, batch: Sequence[Example], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a batch of prompts."""
    prompts: list[Prompt] = [each.prompt if task.raw else each.messages for each in batch]

    def alone(method: Method) -> list[list[int]]:
        return [ids for prompt in prompts for ids in together(method, [prompt])]

    def together(method: Method, prompts: Sequence[Prompt] = prompts) -> list[list[int]]:
        settings = DecodingSettings(method=method, max_new_tokens=options.max_new_tokens)
        return [each.token_ids for each in generate_batch(model, prompts, settings=settings, raw=task.raw)]

    ways: dict[str, Callable[[], list[list[int]]]] = {
        "plain alone": lambda: alone("ntp"),
        "plain in batches": lambda: together("ntp"),
        "exact alone": lambda: alone("exact"),
        "exact in batches": lambda: together("exact"),
        "generate": lambda: [generated(model, prompt, task, options) for prompt in prompts],
    }
    texts = {way: decode() for way, decode in ways.items()}
    for place in range(len(prompts)):
        yield {
            "task": task.name,
            "prompt": first + place,
            "model": options.model,
            "dtype": options.dtype,
            "prepacked": options.prepack,
            "tokens": len(texts["plain alone"][place]),
            **{name: texts[one][place] == texts[other][place] for name, (one, other) in PAIRS.items()},
        }


@torch.inference_mode()
def generated(model: SBDModel, prompt: Prompt, task: Task[Any], options: argparse.Namespace) -> list[int]:
    """Return the answer of Transformers' `generate`."""
    ids = torch.tensor([encode_prompt(model.tokenizer, prompt, raw=task.raw)], device=model.device)
    pad = model.tokenizer.pad_token_id
    output = model.model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=options.max_new_tokens,
        pad_token_id=0 if pad is None else pad,
    )
    found: list[int] = output[0, ids.shape[1] :].tolist()
    return found


def batches(task: Task[Any], options: argparse.Namespace) -> Iterator[tuple[int, list[Example]]]:
    """Yield the prompts, with the number of each batch's first."""
    examples = list(islice(task.examples("test", seed=0), options.limit))
    for first in range(0, len(examples), options.batch_size):
        yield first, examples[first : first + options.batch_size]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of earlier runs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def shares(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the share of prompts for which each pair of texts is equal."""
    return {"prompts": len(lines)} | {name: sum(each[name] for each in lines) / len(lines) for name in PAIRS}


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="smollm2", help="folder, hub id or short name (smollm2)")
    add("--tasks", nargs="+", default=["installed-functions", "instructions"])
    add("--limit", type=int, default=150, help="prompts of each task (150)")
    add("--batch-size", type=int, default=8)
    add("--max-new-tokens", type=int, default=128)
    add("--dtype", choices=("bfloat16", "float16", "float32"), default="bfloat16")
    add("--prepack", action="store_true", help="prepack the weights, for generate too")
    add("--out", type=Path, required=True, help="the lines, appended")
    options = parser.parse_args(arguments)
    for name in ("limit", "batch_size", "max_new_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    return options


if __name__ == "__main__":
    main()
