"""One request at a time from a GGUF file: ours in llama.cpp, llama.cpp alone, its n-gram speculation, and ours in PyTorch.

    python benchmarks/local_models.py --model MODEL --types q8_0,q4_0 --out benchmarks/results/local_models.json

The model is exported in each type first. All contenders get the same token ids, greedily, in turns in one run, and the same
number of threads. Ours takes the block size that `setblock generate` would take: passes are timed, and eq. 16 says which is
fastest. Seconds are of whole answers, prefill included. llama.cpp alone is llama-cpp-python's own generator over the same
library; its n-gram speculation is that package's `LlamaPromptLookupDecoding`. PyTorch computes with the exported weights,
dequantised.

The task is `--task`, by default messages to be written as JSON. A table for people, JSON on the last line.
"""

import argparse
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from functools import partial
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any, get_args

import torch

import setblock
from measuring.contenders import Answer, Contender, ours
from measuring.output import at_least_one, begin, finish, machine, note, parser_of, show, table, with_quartiles
from measuring.timing import spread, timed
from setblock.data.tasks import TASKS, task_named
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.text import encode_prompt
from setblock.evaluation.block_choice import fastest_choice
from setblock.evaluation.pass_costs import PassCosts, measured_costs
from setblock.export.gguf_file import WeightType, write_gguf
from setblock.integrations.llama_cpp import LlamaModel, LlamaOptions
from setblock.integrations.llama_cpp import load as load_gguf
from setblock.integrations.llama_cpp.library import INSTALL, is_installed

PLAIN, NGRAM = "llama.cpp", "llama.cpp, n-gram"
FLAT = 1.05
"""What a pass over a block costs, over one token's, where memory alone limits it."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    results = begin("local_models", options) | {"task": options.task, "types": {}}
    if not is_installed():
        note(f"llama.cpp is not installed ({INSTALL}): nothing is measured")
        finish(results, options)
        return
    with tempfile.TemporaryDirectory() as folder:
        for weights in options.types:
            note(weights)
            path = Path(folder) / f"{weights}.gguf"
            write_gguf(setblock.load(options.model) if options.model else setblock.load(), path, weights=weights)
            results["types"][weights] = of_file(path, options)
            show(table_of(weights, results["types"][weights], machine(results)))
    finish(results, options)


def of_file(path: Path, options: argparse.Namespace) -> dict[str, Any]:
    """All contenders on one file."""
    threads = torch.get_num_threads()
    model = load_gguf(path, LlamaOptions(n_threads=threads))
    examples = islice(task_named(options.task).examples("test", seed=options.seed), options.prompts)
    prompts = [encode_prompt(model.tokenizer, example.messages or example.prompt) for example in examples]
    limit = DecodingSettings(max_new_tokens=options.tokens)
    choice = fastest_choice(measured_costs(model), model.facts)
    note(str(choice))
    sbd = setblock.load(path)
    torch_choice = fastest_choice(measured_costs(sbd), sbd.facts)
    contenders = [
        stock(PLAIN, path, model, threads=threads, tokens=options.tokens, ngram=None),
        stock(NGRAM, path, model, threads=threads, tokens=options.tokens, ngram=options.ngram_tokens),
        ours("ours, plain", model, DecodingSettings(method="ntp", max_new_tokens=options.tokens)),
        ours("ours, exact", model, choice.applied(limit)),
        ours("ours, exact, PyTorch", sbd, torch_choice.applied(limit)),
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
        "choice": choice.to_json(),
        "choice_pytorch": torch_choice.to_json(),
        "expected_where_passes_are_flat": flat_speedup(model, choice.costs),
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


def flat_speedup(model: LlamaModel, costs: PassCosts) -> float:
    """What the same acceptance gives where a pass over any block costs `FLAT` times one over a token."""
    one = costs.seconds[1]
    flat = PassCosts(
        {size: one if size == 1 else FLAT * one for size in costs.seconds}, costs.cached, costs.fuses_commit
    )
    return fastest_choice(flat, model.facts).speedup


def stock(name: str, path: Path, model: LlamaModel, *, threads: int, tokens: int, ngram: int | None) -> Contender:
    """llama-cpp-python's own generator, with drafts from n-grams of the text where `ngram` says how many tokens."""
    import llama_cpp
    from llama_cpp.llama_speculative import LlamaPromptLookupDecoding

    draft = None if ngram is None else LlamaPromptLookupDecoding(num_pred_tokens=ngram)
    made: Callable[..., Any] = llama_cpp.Llama
    engine = made(
        str(path),
        n_ctx=model.context_length,
        n_threads=threads,
        n_threads_batch=threads,
        verbose=False,
        draft_model=draft,
    )

    def decode(prompt: list[int]) -> Answer:
        engine.reset()
        written: list[int] = []
        for token_id in engine.generate(prompt, temp=0.0, repeat_penalty=1.0, reset=True):
            written.append(token_id)
            if token_id in model.end_of_text_ids or len(written) == tokens:
                break
        return Answer(written)

    return Contender(name, decode, True)


def table_of(weights: str, row: dict[str, Any], where: str) -> Any:
    """A row a contender."""
    made = table(f"{weights}; {where}", "contender", "tokens/s", "over llama.cpp", "passes", "same text", caption=None)
    for name, each in row["contenders"].items():
        made.add_row(
            name,
            f"{each['tokens_per_second']:.1f}",
            with_quartiles(each["over_llama_cpp"]),
            "-" if each["passes"] is None else str(each["passes"]),
            f"{each['same_as_llama_cpp']:.0%}",
        )
    return made


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--model", help="folder or name of a checkpoint (the bundled model)")
    add("--types", default="q8_0,q4_0", help="types of weights, with commas between them (q8_0,q4_0)")
    add(
        "--task",
        choices=list(TASKS),
        help="whose test split is answered (extraction; word-problems for the bundled model)",
    )
    add("--seed", type=int, default=0, help="other examples of it")
    add("--prompts", type=int, default=20)
    add("--tokens", type=int, default=200, help="the most of an answer")
    add("--ngram-tokens", type=int, default=10, help="that n-gram speculation drafts at a time")
    add("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    if options.quick:
        options.prompts, options.tokens, options.rounds, options.types = 2, 20, 1, "q8_0"
    options.types = options.types.split(",")
    for each in options.types:
        if each not in get_args(WeightType):
            parser.error(f"--types must be of {', '.join(get_args(WeightType))}, not {each}")
    options.task = options.task or ("extraction" if options.model else "word-problems")
    at_least_one(parser, options, "prompts", "tokens", "ngram_tokens", "rounds")
    return options


if __name__ == "__main__":
    main()
