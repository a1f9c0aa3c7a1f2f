r"""Measure one request at a time, by everything that a user might pick: ours, Transformers' `generate`, its assisted
generation and prompt lookup, and llama.cpp. All over the same weights and token ids, greedily, in turns in one run.

    python benchmarks/side_by_side.py --out benchmarks/results/side_by_side_trained.json
    python benchmarks/side_by_side.py --checkpoint smollm2 --task tasks/humaneval --dtype bfloat16 \
        --allow-code-execution

The model is the bundled one on held-out word problems, or `--checkpoint` on `--task`. Its draft model for assisted generation
is `--draft`, a model of a few layers trained for minutes by benchmarks/draft.py; without one that contender is left out. With
`--prepack` ours is a copy of the model whose weights are laid out for the processor. With `--out`, each answer is kept in a
second file as soon as it is timed, and the same command continues from there.

Seconds are of whole answers, from prompt ids to answer ids, prefill included. Speed-ups are over Transformers' plain
`generate` and over our own plain decoding, with 95% intervals over the requests; the latter once more without the prefill of
either, which is what eq. 16 is about. Predictions are eq. 16 of the paper from the times of passes, measured in the same run. A
table for people, JSON on the last line.
"""

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, get_args

import torch

import setblock
from measuring.comparison import OURS_PLAIN, PLAIN, compared
from measuring.contenders import Contender, llama_cpp, ours, transformers
from measuring.llama_cpp import PACKAGES, is_installed
from measuring.output import SAME_MACHINE, at_least_one, begin, finish, note, parser_of
from measuring.samples import Samples
from measuring.subjects import compiled, prepacked
from setblock.data.tasks import task_named
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.settings.resolve import requested_settings
from setblock.decoding.settings.table import DecodingSettings
from setblock.evaluation.judging import check_judge, verdicts_on
from setblock.evaluation.run import prompts_of
from setblock.export.gguf_file import WeightType
from setblock.model.loading.named import BUNDLED_MODEL
from setblock.model.sbd_model import SBDModel

DTYPES = ("float32", "bfloat16")


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    results = begin("side_by_side", options) | {"block_size": options.block_size}
    finish(results | {"subjects": {"trained": trained(options)}}, options)
    if options.out is not None:
        part_of(options).unlink(missing_ok=True)  # what it held is in the results now


def trained(options: argparse.Namespace) -> dict[str, Any]:
    """Return figures of the bundled model, or another checkpoint, on held-out examples of a task."""
    sbd = setblock.load(options.checkpoint, dtype=getattr(torch, options.dtype) if options.dtype else None)
    own = prepacked(sbd) if options.prepack else sbd
    task = task_named(options.task)
    check_judge(task, allow_code_execution=options.allow_code_execution)
    problems = list(itertools.islice(task.examples("test", seed=options.seed), options.problems))
    requested, raw = prompts_of(task, problems, sbd)
    prompts = [encode_prompt(sbd.tokenizer, each, raw=raw) for each in requested]
    limit: dict[str, Any] = {"block_size": options.block_size, "max_new_tokens": options.answer_tokens}
    settings = {
        OURS_PLAIN: DecodingSettings(method="ntp", **limit),
        **{
            f"ours, blocks, gamma {gamma:g}": requested_settings({"method": "sbd", "gamma": gamma, **limit})
            for gamma in (() if sbd.sbd_config is None else options.gammas)
        },
        "ours, exact": DecodingSettings(method="exact", **limit),
        "ours, exact, with copies": DecodingSettings(method="exact", prompt_lookup=options.prompt_lookup, **limit),
    }
    if sbd.sbd_config is None:
        del settings["ours, exact"]  # whose drafts are copies
    contenders = [
        transformers(PLAIN, sbd.model, max_new_tokens=options.answer_tokens),
        transformers(
            "Transformers prompt lookup", sbd.model, max_new_tokens=options.answer_tokens, prompt_lookup_num_tokens=10
        ),
        *(ours(each, own, how) for each, how in settings.items()),
    ]
    draft = None
    if options.draft.exists():
        draft = setblock.load(options.draft, dtype=sbd.model.dtype)
        contenders.append(
            transformers(
                "Transformers assisted", sbd.model, max_new_tokens=options.answer_tokens, assistant=draft.model
            )
        )
    else:
        note(f"no draft model in {options.draft}: benchmarks/draft.py makes one; assisted generation is left out")
    if options.compile:
        fast = compiled(sbd, backend=options.backend)
        contenders += [ours(f"{each}, compiled", fast, how) for each, how in settings.items()]
    with tempfile.TemporaryDirectory() as folder:
        contenders += llama_cpps(
            sbd,
            None if draft is None else draft.model,
            Path(folder),
            options,
        )
        samples = samples_of(options)
        row = compared(
            own,
            contenders,
            prompts,
            tokens=options.answer_tokens,
            block_size=options.block_size,
            rounds=options.rounds,
            repeats=options.repeats,
            samples=samples,
        )
    for contender, answers in row.pop("answers").items():
        texts = [sbd.tokenizer.decode(answer, skip_special_tokens=True) for answer in answers]
        verdicts = verdicts_on(task, problems, texts)
        if verdicts is not None:
            row["contenders"][contender]["right_answers"] = sum(each.right for each in verdicts) / len(problems)
    return row | {
        "task": task.name,
        "problems": len(problems),
        "draft": None if draft is None else draft.num_parameters,
        "llama_cpp_build": "from source",
    }


def samples_of(options: argparse.Namespace) -> Samples:
    """Return what an earlier run of this command has timed; nothing without a file to keep it in."""
    if options.out is None:
        return Samples()
    identity = begin("side_by_side", options)
    kept = {key: identity[key] for key in SAME_MACHINE} | {key: str(value) for key, value in vars(options).items()}
    return Samples(part_of(options), kept)


def part_of(options: argparse.Namespace) -> Path:
    """Return the file that keeps answers until all are there."""
    out: Path = options.out
    return out.with_suffix(".part.jsonl")


def llama_cpps(sbd: SBDModel, draft: Any, folder: Path, options: argparse.Namespace) -> list[Contender]:
    """Return llama.cpp's contenders, where it is installed."""
    builds = [build for build in options.llama_builds if is_installed(build)]
    for build in options.llama_builds:
        if build not in builds:
            note(f"not installed: {PACKAGES[build]}, llama.cpp as {build}, which is left out")
    common: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "context": 1024,
        "max_new_tokens": options.answer_tokens,
    }
    own: WeightType = "f32" if sbd.model.dtype == torch.float32 else "bf16"
    made = []
    for build in builds:
        program = "llama.cpp" if build == "from source" else PACKAGES[build]
        for weights in options.llama_types or [own]:
            name = program if weights == own else f"{program}, {weights}"
            common |= {"build": build, "weights": weights}
            made.append(llama_cpp(name, sbd.model, folder, **common))
            if build == "from source":
                continue
            if options.llama_ngram:
                made.append(llama_cpp(f"{name}, n-gram", sbd.model, folder, ngram=True, **common))
            if draft is not None:
                made.append(llama_cpp(f"{name} with draft", sbd.model, folder, draft=draft, **common))
    return made


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add(
        "--checkpoint",
        default=BUNDLED_MODEL,
        help="decoded in the bundled model's place: a folder or a name",
    )
    add("--task", default="word-problems", help="that it answers: a name or a file (word-problems)")
    add("--allow-code-execution", action="store_true", help="run programs that answers to it are")
    add("--dtype", choices=DTYPES, help="it computes in (its own)")
    add("--prompt-lookup", type=int, default=2, help="tokens that a copied draft has to match (2)")
    add("--draft", type=Path, default=Path("runs/draft"), help="the trained model's draft model (runs/draft)")
    add("--problems", type=int, default=20, help="held-out problems (20)")
    add("--gammas", nargs="+", type=float, default=[0.01, 0.03, 0.1], help="entropy bounds, in nats (0.01 0.03 0.1)")
    add("--seed", type=int, default=0, help="of the problems (0)")
    add("--answer-tokens", type=int, default=128, help="that the trained model writes at most (128)")
    add("--block-size", type=int, default=16)
    add("--rounds", type=int, default=5, help="timed rounds (5)")
    add("--repeats", type=int, default=15, help="of the passes that eq. 16 predicts from (15)")
    add("--compile", action="store_true", help="also ours through torch.compile; compiles for minutes")
    add("--backend", default="inductor", help="of torch.compile (inductor)")
    add("--prepack", action="store_true", help="ours with prepacked weights, on a CPU")
    add("--llama-types", nargs="+", choices=get_args(WeightType), help="types of llama.cpp's weights (the model's own)")
    add(
        "--llama-builds",
        nargs="*",
        choices=list(PACKAGES),
        default=["from source"],
        help="of llama.cpp: by llama-cpp-python, which builds it for this machine, and by xllamacpp (from source)",
    )
    add("--llama-ngram", action="store_true", help="the wheel with drafts from n-grams of the text, too")
    options = parser.parse_args(arguments)
    if options.quick:
        vars(options).update(problems=2, gammas=[0.1], rounds=1, repeats=1)
    at_least_one(parser, options, "problems", "answer_tokens", "block_size", "rounds", "repeats")
    if options.prepack and (options.compile or torch.cuda.is_available()):
        parser.error("--prepack goes neither with --compile nor with a GPU")
    return options


if __name__ == "__main__":
    main()
