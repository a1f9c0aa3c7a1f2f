"""Measure training: steps on long rows, and recipes from their beginning to decoding."""

import argparse
import itertools
import json
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch

import setblock
import training_step
from measuring.comparison import OURS_PLAIN, PLAIN, compared
from measuring.contenders import ours, transformers
from measuring.output import note
from setblock.data.corpus.corpus import DocumentLimits
from setblock.data.corpus.tokenised import rows_of
from setblock.decoding.settings.table import DecodingSettings
from setblock.training.recipe import load_recipe, parse_override
from setblock.training.run.train import context_length_of
from stages.piece import Pieces

PACE_STEPS = 40


def training_pieces(options: argparse.Namespace) -> Pieces:
    """Yield training steps on long rows."""
    plans = [(length, "flex_attention") for length in (8192, 16384, 32768)] + [(4096, "flex_attention"), (4096, "sdpa")]
    for length, attention in [(64, "sdpa")] if options.quick else plans:  # FlexAttention has no backward pass on CPUs
        arguments = ["--size", "tiny" if options.quick else "1b", "--rows", "1", "--row-length", str(length)]
        arguments += ["--document-length", str(length // 4), "--attention", attention, "--prompt-shares", "0", "--bf16"]
        arguments += ["--activation-checkpointing", "--repeats", "1" if options.quick else "6", "--warmup", "1"]
        its = training_step.parse_options(arguments)
        its.quick = options.quick  # memory is then counted in this process
        yield f"{length}, {attention}", partial(training_step.measured, its)


def recipe_pieces(options: argparse.Namespace) -> Pieces:
    """Train the recipes in the order of their stages, then decode held-out documents of the last one's data."""
    recipes = options.recipes or []
    if not recipes:
        note("recipe: no --recipes; left out")
        return
    for recipe in recipes:
        if options.training_minutes is not None:
            yield f"pace of {recipe.stem}", partial(paced, recipe, options)
        yield f"train {recipe.stem}", partial(trained_by, recipe, options)
    for gamma in (0.01, 0.1, 0.35):
        yield f"decode, gamma {gamma:g}", partial(recipe_decoded, recipes[-1], gamma, options)


def paced(recipe: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Train a few steps elsewhere, and say how long they take. The slow first ones are among them: so it is rather too long."""
    steps = 2 if options.quick else PACE_STEPS
    folder = pace_folder(recipe, options)
    short = {"output_dir": folder.relative_to(options.runs), "max_steps": steps, "save_strategy": "no"}
    run_train(recipe, options, {f"training.{name}": str(value) for name, value in short.items()})
    return {"seconds_per_step": seconds_per_step(folder)}


def pace_folder(recipe: Path, options: argparse.Namespace) -> Path:
    """Return where the few steps are."""
    _, args = load_recipe(recipe, overrides=dict(map(parse_override, options.set)))
    output = options.runs / args.output_dir
    return Path(output.with_name(f"{output.name}-pace"))


def seconds_per_step(folder: Path) -> float:
    """Return how long a step of a finished run took."""
    logs = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    (whole,) = (log for log in logs if "train_runtime" in log)
    return float(whole["train_runtime"]) / int(whole["step"])


def fitted(recipe: Path, options: argparse.Namespace) -> dict[str, str]:
    """Return how many steps and documents fill `--training-minutes`."""
    if options.training_minutes is None:
        return {}
    _, args = load_recipe(recipe, overrides=dict(map(parse_override, options.set)))
    steps = max(1, round(60 * options.training_minutes / seconds_per_step(pace_folder(recipe, options))))
    rows = steps * args.per_device_train_batch_size * args.gradient_accumulation_steps
    return {"training.max_steps": str(steps), "data.documents": str(rows)}


def trained_by(recipe: Path, options: argparse.Namespace) -> dict[str, Any]:
    """Run `setblock train`, stopped when the time is up; it resumes from its newest checkpoint."""
    started = time.monotonic()
    size = fitted(recipe, options)
    run_train(recipe, options, size)
    return {"seconds_of_this_run": time.monotonic() - started, **size}


def run_train(recipe: Path, options: argparse.Namespace, more: Mapping[str, str]) -> None:
    """Run `setblock train` until it is done or the time is up."""
    left = max(5.0, options.until - time.monotonic())
    settings = [*options.set, *(f"{name}={value}" for name, value in more.items())]
    overrides = [part for each in settings for part in ("--set", each)]
    command = [sys.executable, "-m", "setblock", "train", str(recipe.resolve()), *overrides]
    process = subprocess.Popen(command, cwd=options.runs)
    try:
        status = process.wait(timeout=left)
    except subprocess.TimeoutExpired as error:
        process.send_signal(signal.SIGINT)
        process.wait()
        raise TimeoutError("not done yet; the same command goes on from its newest checkpoint") from error
    if status:
        raise RuntimeError(f"setblock train ended with status {status}")


def recipe_decoded(recipe: Path, gamma: float, options: argparse.Namespace) -> dict[str, Any]:
    """Run all methods on the beginnings of held-out documents, in turns: passes, seconds, and tokens as plain decoding
    has them."""
    section, args = load_recipe(recipe, overrides=dict(map(parse_override, options.set)))
    sbd = setblock.load(options.runs / args.output_dir, dtype=None if options.quick else torch.bfloat16)
    rows = rows_of(section.data, sbd.tokenizer, DocumentLimits(context_length_of(sbd.model.config))).get("evaluation")
    if rows is None:
        raise ValueError(f"{recipe} holds out no documents to evaluate on")
    tokens, prompt = (8, 8) if options.quick else (128, 128)
    texts = [rows[i].input_ids for i in range(min(len(rows), 2 if options.quick else 16))]
    prompts = [list(map(int, ids[:prompt])) for ids in texts]
    limit: dict[str, Any] = {"block_size": options.block_size, "max_new_tokens": tokens}
    contenders = [
        transformers(PLAIN, sbd.model, max_new_tokens=tokens),
        transformers("Transformers prompt lookup", sbd.model, max_new_tokens=tokens, prompt_lookup_num_tokens=10),
        ours(OURS_PLAIN, sbd, DecodingSettings(method="ntp", max_new_tokens=tokens)),
        ours(
            "ours, blocks", sbd, DecodingSettings(method="sbd", sampler=setblock.EntropyBounded(gamma=gamma), **limit)
        ),
        ours("ours, exact", sbd, DecodingSettings(method="exact", **limit)),
    ]
    rounds, repeats = (1, 1) if options.quick else (3, 15)
    row = compared(
        sbd, contenders, prompts, tokens=tokens, block_size=options.block_size, rounds=rounds, repeats=repeats
    )
    answers = row.pop("answers")
    plain = answers[OURS_PLAIN]
    for name, each in answers.items():
        same = [_same_tokens(mine, other) for mine, other in zip(each, plain, strict=True)]
        row["contenders"][name]["tokens_until_different"] = statistics.mean(same)
    return row | {"gamma": gamma, "prompts": len(prompts)}


def _same_tokens(mine: list[int], other: list[int]) -> int:
    """Return how many tokens two answers have in common before the first that differs."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(mine, other, strict=False))
    return sum(1 for _ in same)
