"""Compare `exact` on a float32 GGUF file with llama.cpp's own greedy decoding of it, token for token.

    python experiments/gguf_is_greedy.py --model runs/mine --tasks instructions humaneval extraction --limit 67

The model is exported as float32, and both keep keys and values as float32. `exact` commits fused first, then in separate
passes, which must write the same tokens. Prints a line of JSON: how many answers are the same. Exits with 1 where one differs.
"""

import argparse
import json
import sys
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any
from unittest.mock import patch

import llama_cpp
import torch
from rich.progress import track

import setblock
from setblock.data.tasks import TASKS, task_named
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.text import encode_prompt
from setblock.evaluation.answers import prompts_of
from setblock.export.gguf_file import write_gguf
from setblock.integrations.llama_cpp import LlamaModel, LlamaOptions, load

F32 = 0  # llama.cpp's number of the type


def main() -> None:
    """Decode by both, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="folder or hub id; by default the bundled model")
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=["word-problems"])
    parser.add_argument("--limit", type=int, default=100, help="prompts of each task (100)")
    parser.add_argument("--tokens", type=int, default=48, help="the most of an answer (48)")
    parser.add_argument("--block-size", type=int, default=8)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.gguf"
        write_gguf(setblock.load(options.model) if options.model else setblock.load(), path, weights="f32")
        result = compared(path, options)
    print(json.dumps(result))
    sys.exit(result["identical"] < result["prompts"] or result["separate_identical"] < result["prompts"])


def compared(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Return the counts of answers and passes."""
    threads = torch.get_num_threads()
    model = load(path, LlamaOptions(n_threads=threads, type_k="f32", type_v="f32"))
    stock = llama_cpp.Llama(
        str(path), n_ctx=2048, n_threads=threads, n_threads_batch=threads, type_k=F32, type_v=F32, verbose=False
    )
    prompts: list[list[int]] = []
    for name in options.tasks:
        task = task_named(name)
        asked, raw = prompts_of(task, list(islice(task.examples("test", seed=0), options.limit)), model)
        prompts += [encode_prompt(model.tokenizer, each, raw=raw) for each in asked]
    settings = DecodingSettings(method="exact", block_size=options.block_size, max_new_tokens=options.tokens)
    same = separate = passes = tokens = 0
    for prompt in track(prompts, description="compare", transient=True):
        theirs = greedy(stock, prompt, model, options.tokens)
        [fused] = generate_batch(model, [prompt], settings=settings)
        with patch.object(model, "_own", None):  # as where the probe finds no fused commit
            [unfused] = generate_batch(model, [prompt], settings=settings)
        same += fused.token_ids == theirs
        separate += unfused.token_ids == theirs
        passes += fused.passes.decoding
        tokens += len(theirs)
    return {
        "prompts": len(prompts),
        "identical": same,
        "separate_identical": separate,
        "tokens": tokens,
        "exact_passes": passes,
    }


def greedy(stock: llama_cpp.Llama, prompt: list[int], model: LlamaModel, tokens: int) -> list[int]:
    """Return llama.cpp's own answer."""
    stock.reset()
    written: list[int] = []
    for token_id in stock.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True):
        written.append(token_id)
        if token_id in model.end_of_text_ids or len(written) == tokens:
            break
    return written


if __name__ == "__main__":
    main()
