r"""Measure one request at a time, by everything that a user might pick: ours, Transformers' `generate`, its assisted
generation and prompt lookup, and llama.cpp. All over the same weights and token ids, greedily, in turns in one run.

    python benchmarks/side_by_side.py --subjects trained --out benchmarks/results/side_by_side_trained.json
    python benchmarks/side_by_side.py --subjects 100m-bfloat16 --out benchmarks/results/side_by_side_100m.json
    python benchmarks/side_by_side.py --subjects trained --checkpoint smollm2 --task humaneval --dtype bfloat16 \
        --allow-code-execution

`trained` is the bundled model on held-out word problems, or `--checkpoint` on `--task`. Its draft model for assisted generation
is `--draft`, a model of a few layers trained for minutes by benchmarks/draft.py; without one that contender is left out. The
others have random weights, and decode as scripted: blocks with the NFE speed-ups of `--nfe`, exact mode and assisted
generation with drafts of which `--acceptance` are right. Prompt lookup is left out there: a random model repeats itself, so
that its n-grams would always be found. With `--prepack` ours is a copy of the model whose weights are laid out for the
processor. With `--out`, each answer is kept in a second file as soon as it is timed, and the same command continues from there.

Seconds are of whole answers, from prompt ids to answer ids, prefill included. Speed-ups are over Transformers' plain
`generate` and over our own plain decoding, with 95% intervals over the requests; the latter once more without the prefill of
either, which is what eq. 16 is about. Predictions are eq. 16 of the paper from the times of passes, measured in the same run. A
table for people, JSON on the last line.
"""

import argparse
import itertools
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, get_args

import torch

import setblock
from measuring.comparison import OURS_PLAIN, PLAIN, compared
from measuring.contenders import Contender, llama_cpp, ours, ours_scripted, transformers
from measuring.forced import FixedCount, Script
from measuring.llama_cpp import PACKAGES, is_installed
from measuring.output import SAME_MACHINE, at_least_one, begin, finish, note, parser_of
from measuring.samples import Samples
from measuring.subjects import DRAFTS, SIZES, compiled, prepacked, random_model, random_prompt
from setblock.data.tasks import task_named
from setblock.decoding.answer.text import encode_prompt
from setblock.decoding.settings.asked import settings_asked
from setblock.decoding.settings.table import DecodingSettings
from setblock.evaluation.exam import prompts_of
from setblock.evaluation.judging.judges import check_judge, verdicts_on
from setblock.export.gguf_file import WeightType
from setblock.model.loading.bundled import BUNDLED_MODEL
from setblock.model.sbd_model import SBDModel

DTYPES = ("float32", "bfloat16")
SUBJECTS = ("trained", *(f"{size}-{dtype}" for size in SIZES for dtype in DTYPES))


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    results = begin("side_by_side", options) | {"block_size": options.block_size, "subjects": {}}
    for name in options.subjects:
        note(name)
        results["subjects"][name] = (trained if name == "trained" else random)(name, options)
    finish(results, options)
    for name in options.subjects:
        if options.out is not None:
            part_of(name, options).unlink(missing_ok=True)  # what it held is in the results now


def trained(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return figures of the bundled model, or another checkpoint, on held-out examples of a task."""
    sbd = setblock.load(options.checkpoint, dtype=getattr(torch, options.dtype) if options.dtype else None)
    own = prepacked(sbd) if options.prepack else sbd
    task = task_named(options.task)
    check_judge(task, allow_code_execution=options.allow_code_execution)
    problems = list(itertools.islice(task.examples("test", seed=options.seed), options.problems))
    asked, raw = prompts_of(task, problems, sbd)
    prompts = [encode_prompt(sbd.tokenizer, each, raw=raw) for each in asked]
    limit: dict[str, Any] = {"block_size": options.block_size, "max_new_tokens": options.answer_tokens}
    settings = {
        OURS_PLAIN: DecodingSettings(method="ntp", **limit),
        **{
            f"ours, blocks, gamma {gamma:g}": settings_asked({"method": "sbd", "gamma": gamma, **limit})
            for gamma in (() if sbd.facts is None else options.gammas)
        },
        "ours, exact": DecodingSettings(method="exact", **limit),
        "ours, exact, with copies": DecodingSettings(method="exact", draft_lookup=options.draft_lookup, **limit),
    }
    if sbd.facts is None:
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
            tokens=options.answer_tokens,
            never_ends=False,
        )
        samples = samples_of(name, options)
        row = compared(own, contenders, prompts, tokens=options.answer_tokens, samples=samples, **repeated(options))
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


def random(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Return figures of a model of random weights, one prompt, with scripted decoding."""
    size, dtype = name.rsplit("-", 1)
    sbd = random_model(SIZES[size], dtype=getattr(torch, dtype), block_size=options.block_size)
    own = prepacked(sbd) if options.prepack else sbd
    draft = random_model(DRAFTS[size], dtype=getattr(torch, dtype))
    prompt = random_prompt(sbd, options.prompt)
    limit: dict[str, Any] = {"block_size": options.block_size, "max_new_tokens": options.tokens}
    exact = DecodingSettings(method="exact", **limit)
    plain = transformers(PLAIN, sbd.model, max_new_tokens=options.tokens)
    whole = prompt + plain.decode(prompt).token_ids

    def script(rate: float) -> Script:
        return Script(whole, rate=rate, vocab_size=sbd.model.config.vocab_size, device=sbd.device)

    def of(model: SBDModel, suffix: str) -> list[Contender]:
        return [
            ours(f"{OURS_PLAIN}{suffix}", model, DecodingSettings(method="ntp", **limit)),
            *(
                ours(
                    f"ours, blocks, NFE {nfe}{suffix}",
                    model,
                    DecodingSettings(method="sbd", sampler=FixedCount(nfe), **limit),
                )
                for nfe in options.nfe
                if nfe <= options.block_size
            ),
            *(
                ours_scripted(f"ours, exact, {rate:.0%} right{suffix}", model, exact, partial(script, rate))
                for rate in options.acceptance
            ),
        ]

    contenders = [plain, *of(own, "")]
    contenders += [
        transformers(
            f"Transformers assisted, {rate:.0%} right",
            sbd.model,
            max_new_tokens=options.tokens,
            assistant=draft.model,
            draft_tokens=options.draft_tokens,
            script=partial(script, rate),
        )
        for rate in options.acceptance
    ]
    if options.compile:
        contenders += of(compiled(sbd, backend=options.backend), ", compiled")
    if torch.cuda.is_available():
        static = transformers(
            "Transformers static cache", sbd.model, max_new_tokens=options.tokens, cache_implementation="static"
        )
        contenders.append(static)
    with tempfile.TemporaryDirectory() as folder:
        contenders += llama_cpps(sbd, None, Path(folder), options, tokens=options.tokens, never_ends=True)
        row = compared(own, contenders, [prompt], tokens=options.tokens, **repeated(options))
    del row["answers"]
    return row | {
        "prompt": options.prompt,
        "tokens": options.tokens,
        "draft": draft.num_parameters,
        "llama_cpp_build": "from source",
    }


def samples_of(name: str, options: argparse.Namespace) -> Samples:
    """Return what an earlier run of this command has timed of a subject; nothing without a file to keep it in."""
    if options.out is None:
        return Samples()
    identity = begin("side_by_side", options)
    kept = {key: identity[key] for key in SAME_MACHINE} | {key: str(value) for key, value in vars(options).items()}
    return Samples(part_of(name, options), kept)


def part_of(name: str, options: argparse.Namespace) -> Path:
    """Return the file that keeps a subject's answers until all are there."""
    out: Path = options.out
    return out.with_suffix(f".{name}.part.jsonl")


def repeated(options: argparse.Namespace) -> dict[str, Any]:
    """Return how often `compared` measures, and with which blocks."""
    return {name: getattr(options, name) for name in ("block_size", "rounds", "repeats")}


def llama_cpps(
    sbd: SBDModel, draft: Any, folder: Path, options: argparse.Namespace, *, tokens: int, never_ends: bool
) -> list[Contender]:
    """Return llama.cpp's contenders, where it is installed."""
    builds = [build for build in options.llama_builds if is_installed(build)]
    for build in options.llama_builds:
        if build not in builds:
            note(f"not installed: {PACKAGES[build]}, llama.cpp as {build}, which is left out")
    common: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "context": options.context,
        "max_new_tokens": tokens,
        "never_ends": never_ends,
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
        "--subjects",
        nargs="+",
        choices=SUBJECTS,
        default=["trained", "100m-bfloat16"],
        metavar="NAME",
        help=f"of {', '.join(SUBJECTS)}",
    )
    add(
        "--checkpoint",
        default=BUNDLED_MODEL,
        help="decoded as `trained`, in the bundled model's place: a folder or a name",
    )
    add("--task", default="word-problems", help="that it answers: a name or a file (word-problems)")
    add("--allow-code-execution", action="store_true", help="run programs that answers to it are")
    add("--dtype", choices=DTYPES, help="it computes in (its own)")
    add("--draft-lookup", type=int, default=2, help="tokens that a copied draft has to match (2)")
    add("--draft", type=Path, default=Path("runs/draft"), help="the trained model's draft model (runs/draft)")
    add("--problems", type=int, default=20, help="held-out problems (20)")
    add("--gammas", nargs="+", type=float, default=[0.01, 0.03, 0.1], help="entropy bounds, in nats (0.01 0.03 0.1)")
    add("--seed", type=int, default=0, help="of the problems (0)")
    add("--nfe", nargs="+", type=int, default=[2, 4, 8], help="forced NFE speed-ups (2 4 8)")
    add("--acceptance", nargs="+", type=float, default=[0.8, 0.95], help="forced shares of right drafts (0.8 0.95)")
    add("--draft-tokens", type=int, default=8, help="that a random draft model drafts at a time (8)")
    add("--prompt", type=int, default=128, help="tokens of the random models' prompt (128)")
    add("--tokens", type=int, default=128, help="that the random models write (128)")
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
        tiny = {
            "subjects": ["trained", "tiny-float32"],
            "problems": 2,
            "gammas": [0.1],
            "nfe": [4],
            "acceptance": [0.8],
        }
        vars(options).update(tiny, prompt=8, tokens=32, rounds=1, repeats=1)
    at_least_one(
        parser,
        options,
        "problems",
        "nfe",
        "draft_tokens",
        "prompt",
        "tokens",
        "answer_tokens",
        "block_size",
        "rounds",
        "repeats",
    )
    if options.prepack and (options.compile or torch.cuda.is_available()):
        parser.error("--prepack goes neither with --compile nor with a GPU")
    options.context = max(1024, options.prompt + options.tokens)
    return options


if __name__ == "__main__":
    main()
