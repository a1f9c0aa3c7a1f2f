"""Measure one request at a time from a GGUF file: ours in llama.cpp, llama.cpp alone, its n-gram speculation, and ours
in PyTorch.

    python benchmarks/local_models.py --model MODEL --types q8_0,q4_0 --out benchmarks/results/local_models.json

The model is exported in each type first. All contenders get the same token ids, greedily, in turns in one run, and the same
number of threads. Ours takes the block size that `setblock generate` would take: passes are timed, and eq. 16 says which is
fastest. Seconds are of whole answers, prefill included. llama.cpp alone is llama-cpp-python's own generator over the same
library; its n-gram speculation is that package's `LlamaPromptLookupDecoding`. Draft speculation takes `--draft`, a small model
that benchmarks/draft.py trains; it is exported in the same type. PyTorch computes with the exported weights, dequantised.

The task is `--task`, by default messages to be written as JSON. A table for people, JSON on the last line.
"""

import argparse
import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

import setblock
from measuring.contenders import Answer, Contender, ours
from measuring.output import at_least_one, begin, finish, note, parser_of
from measuring.plain import stock_answer, stock_llama
from measuring.timing import spread, timed
from setblock.data.tasks import task_named
from setblock.decoding.answer.text import encode_prompt
from setblock.decoding.settings.table import DecodingSettings
from setblock.evaluation.run import prompts_of
from setblock.export.gguf_file import WeightType, write_gguf
from setblock.integrations.llama_cpp import LlamaModel
from setblock.integrations.llama_cpp import load as load_gguf
from setblock.integrations.llama_cpp.library import INSTALL, is_installed

PLAIN, NGRAM, DRAFT = "llama.cpp", "llama.cpp, n-gram", "llama.cpp, draft model"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    results = begin("local_models", options) | {"task": task_named(options.task).name, "types": {}}
    if not is_installed():
        note(f"llama.cpp is not installed ({INSTALL}): nothing is measured")
        finish(results, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        for weights in options.types:
            note(weights)
            path = Path(folder) / f"{weights}.gguf"
            write_gguf(setblock.load(options.model) if options.model else setblock.load(), path, weights=weights)
            draft = None
            if options.draft is not None:
                draft = path.with_name(f"draft-{weights}.gguf")
                write_gguf(setblock.load(options.draft), draft, weights=weights)
            results["types"][weights] = of_file(path, draft, options)
    finish(results, options)


def of_file(path: Path, draft: Path | None, options: argparse.Namespace) -> dict[str, Any]:
    """Measure all contenders on one file.

    Args:
        draft: the draft model's file; without one, draft speculation is left out.
    """
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    model = load_gguf(path)
    task = task_named(options.task)
    asked, raw = prompts_of(task, list(islice(task.examples("test", seed=options.seed), options.prompts)), model)
    prompts = [encode_prompt(model.tokenizer, each, raw=raw) for each in asked]
    limit = DecodingSettings(max_new_tokens=options.tokens)
    sbd = setblock.load(path)
    drafts: dict[str, Any] = {NGRAM: LlamaPromptLookupDecoding(num_pred_tokens=options.draft_tokens)}
    if draft is not None:
        drafts[DRAFT] = SmallModel(draft, model, tokens=options.draft_tokens)
    contenders = [
        stock(PLAIN, path, model, tokens=options.tokens),
        *(stock(name, path, model, tokens=options.tokens, drafts=each) for name, each in drafts.items()),
        ours("ours, plain", model, DecodingSettings(method="ntp", max_new_tokens=options.tokens)),
        ours("ours, exact", model, limit),
        ours("ours, exact, PyTorch", sbd, limit),
    ]
    first = {each.name: [each.decode(prompt) for prompt in prompts] for each in contenders}  # does not count
    rounds: dict[str, list[float]] = {each.name: [] for each in contenders}
    for _ in range(options.rounds):
        totals = dict.fromkeys(rounds, 0.0)
        for prompt in prompts:
            for each in contenders:
                totals[each.name] += timed(partial(each.decode, prompt))[1]
        for name, total in totals.items():
            rounds[name].append(total)
    plain = [answer.token_ids for answer in first[PLAIN]]
    return {
        "bytes": path.stat().st_size,
        "contenders": {
            name: {
                "seconds": asdict(spread(taken)),
                "tokens_per_second": sum(len(each.token_ids) for each in first[name]) / median(taken),
                "passes": None if first[name][0].passes is None else sum(each.passes or 0 for each in first[name]),
                "over_llama_cpp": asdict(
                    spread([other / own for other, own in zip(rounds[PLAIN], taken, strict=True)])
                ),
                "same_as_llama_cpp": sum(a.token_ids == b for a, b in zip(first[name], plain, strict=True))
                / len(plain),
            }
            for name, taken in rounds.items()
        },
    }


def stock(name: str, path: Path, model: LlamaModel, *, tokens: int, drafts: Any = None) -> Contender:
    """Return llama-cpp-python's own generator, with its speculation where there are `drafts`."""
    llama = stock_llama(path, model, draft_model=drafts)
    return Contender(name, lambda prompt: Answer(stock_answer(llama, model, prompt, max_new_tokens=tokens)), True)


class SmallModel:
    """Draft by another file's greedy decoding: a `LlamaDraftModel`, of which llama-cpp-python has only the n-gram one."""

    def __init__(self, path: Path, target: LlamaModel, *, tokens: int) -> None:
        self._engine = stock_llama(path, target)
        self._tokens = tokens

    def __call__(self, input_ids: NDArray[np.intc], /, **_: Any) -> NDArray[np.intc]:
        """Return the next tokens [n] of the text [L]; what both texts share with the last call stays in the cache."""
        written = self._engine.generate(input_ids.tolist(), temp=0.0, repeat_penalty=1.0, reset=True)
        return np.array(list(islice(written, self._tokens)), dtype=np.intc)


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--model", help="folder or name of a checkpoint (the bundled model)")
    add("--types", default="q8_0,q4_0", help="types of weights, with commas between them (q8_0,q4_0)")
    add("--task", help="whose test split is answered (tasks/extraction; word-problems for the bundled model)")
    add("--seed", type=int, default=0, help="other examples of it")
    add("--prompts", type=int, default=20)
    add("--tokens", type=int, default=200, help="the most of an answer")
    add("--draft", type=Path, help="draft model of llama.cpp's draft speculation: a folder (none)")
    add("--draft-tokens", type=int, default=10, help="that n-gram and draft speculation draft at a time")
    add("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.quick:
        options.prompts, options.tokens, options.rounds, options.types = 2, 20, 1, "q8_0"
    options.types = options.types.split(",")
    for each in options.types:
        if each not in get_args(WeightType):
            parser.error(f"--types must be of {', '.join(get_args(WeightType))}, not {each}")
    options.task = options.task or ("tasks/extraction" if options.model else "word-problems")
    at_least_one(parser, options, "prompts", "tokens", "draft_tokens", "rounds")
    return options


if __name__ == "__main__":
    main()
