"""Compare exact mode with greedy next-token decoding, token for token: our plain loop's, and the runtime's own.

    python benchmarks/exact_is_greedy.py --model smollm2 --prepack --out runs/exact_is_greedy.jsonl
    python benchmarks/exact_is_greedy.py --model f32.gguf --tasks instructions tasks/humaneval --out gguf.jsonl

Each prompt is decoded plainly and exactly, alone and in a batch, and by the runtime's own loop: Transformers' `generate`, or
llama.cpp's for a GGUF file. There, exact mode is tried with separate commits, too: passes without the next block in them.
In half precision logits often differ in their last bit only, so a pass that sums in another order gives another text.

Appends one line of JSON for each prompt. The same command continues an interrupted run. Prints one line of JSON: the shares of
equal texts in all lines of the file, and the passes after the prefill. Exits with 1 where exact mode's text is not plain
decoding's.
"""

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import patch

import torch
from rich.progress import track

import setblock
from setblock.data.tasks import Example, Task, task_named
from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.settings.table import DecodingSettings, Method
from setblock.engine.generate import generate_batch
from setblock.evaluation.run import prompts_of
from setblock.integrations.llama_cpp import LlamaModel, LlamaOptions
from setblock.integrations.llama_cpp import load as load_gguf
from setblock.model.protocol.runtime import LanguageModel
from setblock.model.sbd_model import SBDModel

sys.path.append(str(Path(__file__).parent.parent / "benchmarks"))
from measuring.plain import stock_answer, stock_llama, transformers_answer

PAIRS = {
    "exact_is_plain_alone": ("exact alone", "plain alone"),
    "exact_is_plain_in_batches": ("exact in batches", "plain in batches"),
    "plain_in_batches_is_plain_alone": ("plain in batches", "plain alone"),
    "exact_in_batches_is_plain_alone": ("exact in batches", "plain alone"),
    "plain_is_the_runtimes": ("plain alone", "runtime"),
    "exact_is_the_runtimes": ("exact alone", "runtime"),
    "separate_commits_are_fused_ones": ("exact, separate commits", "exact alone"),
}
"""What is compared, where there are both."""


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
        runtime = opened(options)
        options.out.parent.mkdir(parents=True, exist_ok=True)
        for task, first, batch in track(missing, description="batches", transient=True):
            lines = [json.dumps(line) + "\n" for line in compared(runtime, task, first, batch, options)]
            with options.out.open("a", encoding="utf-8") as file:
                file.write("".join(lines))
    found = summary(lines_of(options.out))
    print(json.dumps(found))
    sys.exit(min(found["exact_is_plain_alone"], found["exact_is_plain_in_batches"]) < 1)


class Runtime(Protocol):
    """Hold a model, and decode greedily without this package."""

    dtype: str

    @property
    def model(self) -> LanguageModel:
        """Return the model."""
        ...

    def greedy(self, prompt: list[int], *, tokens: int) -> list[int]:
        """Return the token ids of the answer, at most `tokens`."""
        ...


class Torch:
    """Run a checkpoint in PyTorch; `generate` of Transformers is its own loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        dtype = None if options.dtype is None else getattr(torch, options.dtype)
        self.model: SBDModel = setblock.load(options.model, dtype=dtype)
        self.dtype = str(self.model.model.dtype).removeprefix("torch.")
        if options.prepack:
            self.model.prepack()

    def greedy(self, prompt: list[int], *, tokens: int) -> list[int]:
        """See `Runtime`."""
        return transformers_answer(self.model.model, prompt, max_new_tokens=tokens)


class LlamaCpp:
    """Run a GGUF file in llama.cpp, keys and values in float32; llama-cpp-python's generator is its own loop."""

    def __init__(self, options: argparse.Namespace) -> None:
        import llama_cpp

        self.model: LlamaModel = load_gguf(options.model, LlamaOptions(type_k="f32", type_v="f32"))
        self.dtype = "gguf"
        types = {"type_k": llama_cpp.GGML_TYPE_F32, "type_v": llama_cpp.GGML_TYPE_F32}
        self._stock = stock_llama(options.model, self.model, **types)

    def greedy(self, prompt: list[int], *, tokens: int) -> list[int]:
        """See `Runtime`."""
        return stock_answer(self._stock, self.model, prompt, max_new_tokens=tokens)


def opened(options: argparse.Namespace) -> Runtime:
    """Return the model in its runtime."""
    return LlamaCpp(options) if options.model.endswith(".gguf") else Torch(options)


def compared(
    runtime: Runtime, task: Task[Any], first: int, batch: Sequence[Example], options: argparse.Namespace
) -> Iterator[dict[str, Any]]:
    """Yield the lines of a batch of prompts."""
    model = runtime.model
    asked, raw = prompts_of(task, batch, model)
    prompts = [encode_prompt(model.tokenizer, each, raw=raw) for each in asked]

    def together(method: Method, prompts: Sequence[list[int]] = prompts) -> list[Generation]:
        settings = DecodingSettings(method=method, max_new_tokens=options.max_new_tokens)
        return generate_batch(model, prompts, settings=settings)

    def alone(method: Method) -> list[Generation]:
        return [each for prompt in prompts for each in together(method, [prompt])]

    ours = {
        "plain alone": alone("ntp"),
        "plain in batches": together("ntp"),
        "exact alone": alone("exact"),
        "exact in batches": together("exact"),
    }
    if isinstance(model, LlamaModel):
        with patch.object(model, "_own", None):  # as where the probe finds no fused commit
            ours["exact, separate commits"] = alone("exact")
    texts = {way: [each.token_ids for each in found] for way, found in ours.items()}
    if not options.own_only:
        texts["runtime"] = [runtime.greedy(prompt, tokens=options.max_new_tokens) for prompt in prompts]
    for place in range(len(prompts)):
        yield {
            "task": task.name,
            "prompt": first + place,
            "model": options.model,
            "dtype": runtime.dtype,
            "prepacked": options.prepack,
            "tokens": len(texts["plain alone"][place]),
            "plain_passes": ours["plain alone"][place].passes.decoding,
            "exact_passes": ours["exact alone"][place].passes.decoding,
            **{
                name: texts[one][place] == texts[other][place]
                for name, (one, other) in PAIRS.items()
                if one in texts and other in texts
            },
        }


def batches(task: Task[Any], options: argparse.Namespace) -> Iterator[tuple[int, list[Example]]]:
    """Yield the prompts, with the number of each batch's first."""
    examples = list(islice(task.examples("test", seed=0), options.limit))
    for first in range(0, len(examples), options.batch_size):
        yield first, examples[first : first + options.batch_size]


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the lines of earlier runs."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def summary(lines: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the share of prompts for which each pair of texts is equal, and the passes in all."""
    plain, exact = (sum(each[name] for each in lines) for name in ("plain_passes", "exact_passes"))
    compared = {name: [each[name] for each in lines if name in each] for name in PAIRS}
    shares = {name: sum(each) / len(each) for name, each in compared.items() if each}
    return {"prompts": len(lines), **shares, "plain_passes": plain, "exact_passes": exact, "nfe_speedup": plain / exact}


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", default="smollm2", help="folder, hub id, short name or GGUF file (smollm2)")
    add("--tasks", nargs="+", metavar="TASK", default=["tasks/humaneval", "instructions"])
    add("--limit", type=int, default=150, help="prompts of each task (150)")
    add("--batch-size", type=int, default=8)
    add("--max-new-tokens", type=int, default=128)
    add("--dtype", choices=("bfloat16", "float16", "float32"), help="to compute in (the checkpoint's)")
    add("--prepack", action="store_true", help="prepack the weights, for generate too")
    add("--own-only", action="store_true", help="leave out the runtime's own loop, which takes longest")
    add("--out", type=Path, required=True, help="the lines, appended")
    options = parser.parse_args(arguments)
    for name in ("limit", "batch_size", "max_new_tokens"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    return options


if __name__ == "__main__":
    main()
