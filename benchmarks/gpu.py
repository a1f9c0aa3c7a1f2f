"""Everything that a GPU should answer, in stages that are saved piece by piece: a run that is stopped goes on where it was.

    python benchmarks/gpu.py --out benchmarks/results/gpu.json
    python benchmarks/gpu.py --stages checks passes --minutes 9 --out benchmarks/results/gpu.json
    python benchmarks/gpu.py --quick

Needs no network. `--minutes` begins no piece after so many; none but compiling and training takes more than one or two. A
piece that fails is told of, saved with its error and tried again by the next run; the exit status then is 1.

    machine        bandwidth and peak that simple kernels reach, beside the data sheet's checks         FlexAttention's
    forward and backward pass, exact mode, compiled passes, batches and quantised weights compute
                   what plain ones do
    breakdown      where a pass's time goes, and how often the host waits for the GPU passes         an 8B model in
    bfloat16: passes over blocks of 1 to 64, batches of 1 to 32, two lengths; beside the roofline graphs         the same
    passes eagerly, as CUDA graphs, and through torch.compile growth         whole decoding of the 8B model at batches of 1
    to 32, beside Transformers' `generate` and the roofline side_by_side   one request: ours, eager and compiled, beside
    Transformers' `generate`, its static cache and assisted generation training       a training step at rows of 8k to 32k
    tokens through FlexAttention, beside plain next-token training recipe         the recipes of
    `--recipes`: trained, then decoded by all methods

Without a GPU the stages run in miniature only (`--quick`), which shows that they work and measures nothing.
"""

import argparse
import itertools
import signal
import statistics
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

import breakdown
import growth
import setblock
import side_by_side
import training_step
from measuring import checks
from measuring.contenders import ours, transformers
from measuring.hardware import roofline_hardware
from measuring.output import begin, finish, note, parser_of, read, rounded, write
from measuring.subjects import SIZES, PassKind, compiled, noisy_cache, passes, random_model
from measuring.timing import interleaved
from setblock.data.rows import rows_of
from setblock.decoding.settings import DecodingSettings
from setblock.model.sbd_model import SBDModel
from setblock.roofline.machine import measured_hardware
from setblock.roofline.precision import Precision
from setblock.roofline.prediction import Prediction
from setblock.roofline.shape import shape_of
from setblock.training.recipe import load_recipe, parse_override
from setblock.training.train import context_length_of

Piece = Callable[[], dict[str, Any]]
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KINDS: tuple[PassKind, ...] = ("one token", "block", "fused")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the stages' pieces that are not there yet, until the time is up."""
    options = parse_options(arguments)
    results = begin("gpu", options) | {"stages": {}}
    found = read(options.out, like=results) if options.out else None
    if found is not None:
        results["stages"] = found["stages"]
    failed = 0
    for stage in options.stages:
        done = results["stages"].setdefault(stage, {})
        for name, piece in STAGES[stage](options):
            if name in done and "error" not in done[name]:
                continue
            if time.monotonic() > options.until:
                note("the time is up; the same command goes on")
                break
            note(f"{stage}: {name}")
            started = time.monotonic()
            try:
                done[name] = piece()
            except Exception as error:  # the other pieces are worth having; this one is told of, and tried again
                traceback.print_exc()
                done[name] = {"error": f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"}
            failed += not done[name].get("passed", "error" not in done[name])
            print(f"   {time.monotonic() - started:.1f} s: {_brief(done[name])}", flush=True)
            if options.out:
                write(results, options.out)
            if DEVICE.type == "cuda":
                torch.cuda.empty_cache()
    finish(results, options)
    if failed:
        raise SystemExit(f"{failed} pieces failed")


def _brief(row: dict[str, Any]) -> str:
    text = str(rounded(row))
    return text if len(text) < 300 else f"{text[:300]}..."


def machine_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """What this machine does."""

    def piece() -> dict[str, Any]:
        dtype = getattr(torch, options.dtype)
        taken = roofline_hardware(dtype, device=DEVICE, quick=options.quick)
        reached = taken if options.quick else measured_hardware(dtype, device=DEVICE, seconds=1)
        return {
            "reached": growth.told(reached),
            "roofline": growth.told(taken),
            "memory": reached.memory,
            "capability": torch.cuda.get_device_capability() if DEVICE.type == "cuda" else None,
            "cuda": torch.version.cuda,
        }

    yield "figures", piece


def check_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """`measuring.checks`; in miniature nothing is compiled."""
    size, tokens = ("tiny", 12) if options.quick else ("100m", 128)
    for dtype in (torch.float32, torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        row_length = 32 if options.quick else 1024
        yield f"FlexAttention is dense, {name}", partial(checks.flex_is_dense, size, dtype, row_length=row_length)
        yield f"exact is plain, {name}", partial(checks.exact_is_plain, size, dtype, tokens=tokens)
        backend = "eager" if options.quick else "inductor"
        yield f"compiled is eager, {name}", partial(checks.compiled_is_eager, size, dtype, backend=backend)
    yield "rows are alone", partial(checks.rows_are_alone, size, tokens=tokens)
    for kind in ("int8", "nf4"):
        yield f"{kind} is close", partial(checks.quantized_is_close, size, kind)


def breakdown_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """Where the time of a pass goes."""
    for size in ("tiny",) if options.quick else ("100m", "8b"):

        def piece(size: str = size) -> dict[str, Any]:
            arguments = ["--size", size, "--dtype", options.dtype, "--tokens", "16" if options.quick else "128"]
            its = breakdown.parse_options(arguments)
            sbd = random_model(SIZES[size], dtype=getattr(torch, options.dtype))
            return {"methods": {method: breakdown.measured(sbd, method, its) for method in breakdown.METHODS}}

        yield size, piece


def pass_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """Block passes over one-token passes, beside the roofline's."""
    shared = _once(lambda: random_model(SIZES[options.size], dtype=getattr(torch, options.dtype), block_size=64))
    block_sizes = (1, 4) if options.quick else (1, 2, 4, 8, 16, 32, 64)
    for kv_length, batch in itertools.product(options.kv_lengths, options.batches):

        def piece(kv_length: int = kv_length, batch: int = batch) -> dict[str, Any]:
            sbd, at = shared(), {"batch": batch, "kv_length": kv_length}
            prediction = _prediction(sbd, options)
            actions, predicted = {}, {}
            # One cache for all: at the longest and largest, each of its own would not fit
            cache = noisy_cache(sbd, batch=batch, cached=kv_length, capacity=kv_length + 2 * max(block_sizes))
            for k, kind in itertools.product(block_sizes, KINDS):
                if (kind == "one token" and k != 1) or (kind == "fused" and k != options.block_size):
                    continue
                for column, action in passes(sbd, kind, block_size=k, cache=cache, **at).items():
                    actions[f"{kind} {k}/{column}"] = action
                fed = 2 * k if kind == "fused" else k
                predicted[f"{kind} {k}"] = prediction.seconds(fed, outputs=k, **at)
            times = interleaved(actions, repeats=options.repeats)
            return {
                name: {"roofline": expected, **{c: asdict(times[f"{name}/{c}"]) for c in ("library", "model")}}
                for name, expected in predicted.items()
            }

        yield f"batch {batch}, {kv_length} cached", piece


def graph_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """The model's pass alone: launched kernel by kernel, replayed as a CUDA graph, compiled, and compiled in a graph."""
    shared = _once(lambda: random_model(SIZES[options.size], dtype=getattr(torch, options.dtype)))
    backend = "eager" if options.quick else "inductor"
    fast = _once(lambda: compiled(shared(), backend=backend))
    for kind, batch in itertools.product(KINDS, options.batches[:1] + options.batches[-2:-1]):

        def piece(kind: PassKind = kind, batch: int = batch) -> dict[str, Any]:
            at = {"block_size": options.block_size, "kv_length": options.kv_lengths[0], "batch": batch}
            eager, quick = passes(shared(), kind, **at), passes(fast(), kind, **at)
            actions = {
                "eager": eager["model"],
                "CUDA graph": graphed(eager["model"]),
                "compiled": quick["model"],
                "compiled, CUDA graph": graphed(quick["model"]),
                "library, eager": eager["library"],
                "library, compiled": quick["library"],
            }
            expected = actions["eager"]().clone()
            off = {name: checks.difference(expected, actions[name]()) for name in list(actions)[1:4]}
            times = interleaved(actions, repeats=options.repeats)
            return {
                "times": {name: asdict(each) for name, each in times.items()},
                "logits_differ_by": off,
                "passed": max(off.values()) < 0.05,
            }

        yield f"{kind}, batch {batch}", piece


def graphed(action: Callable[[], Tensor]) -> Callable[[], Tensor]:
    """The same, captured as a CUDA graph and replayed; without a GPU, as it is."""
    if DEVICE.type != "cuda":
        return action
    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            action()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = action()

    def replay() -> Tensor:
        graph.replay()
        return result

    return replay


def growth_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """Whole decoding over batches and lengths."""
    numbers = ["--tokens", "16", "--rounds", "1"] if options.quick else ["--tokens", "48", "--rounds", "3"]
    sizes = ["--size", options.size, "--dtype", options.dtype, "--gib", "90"]
    nfe = ["--nfe", *(["4"] if options.quick else ["2", "4", "8"])]
    its = growth.parse_options([*sizes, *numbers, *nfe])
    dtype = getattr(torch, options.dtype)
    shared = _once(lambda: random_model(SIZES[options.size], dtype=dtype))
    for kv_length, batch in itertools.product(options.kv_lengths, options.batches):

        def piece(kv_length: int = kv_length, batch: int = batch) -> dict[str, Any]:
            hardware = roofline_hardware(dtype, device=DEVICE, quick=options.quick)
            return growth.cell(shared(), batch, kv_length, hardware, its)

        yield f"batch {batch}, {kv_length} cached", piece


def side_by_side_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """One request, all ways. llama.cpp's wheel has no CUDA and is left out."""
    subjects = ("tiny-float32",) if options.quick else ("8b-bfloat16", "1b-bfloat16", "trained")
    for subject, suffix in itertools.product(subjects, ("", ", compiled")):
        if subject == "trained" and suffix:
            continue
        numbers = ["--tokens", "128", "--rounds", "5"]
        if options.quick:
            numbers = [
                "--tokens",
                "16",
                "--rounds",
                "1",
                "--prompt",
                "8",
                "--repeats",
                "1",
                "--nfe",
                "4",
                "--backend",
                "eager",
            ]
        arguments = ["--subjects", subject, *numbers, "--no-llama-cpp", *(["--compile"] if suffix else [])]
        its = side_by_side.parse_options(arguments)
        run = side_by_side.trained if subject == "trained" else side_by_side.random
        yield f"{subject}{suffix}", partial(run, subject, its)


def training_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """Training steps on long rows."""
    plans = [(length, "flex_attention") for length in (8192, 16384, 32768)] + [(4096, "flex_attention"), (4096, "sdpa")]
    for length, attention in [(64, "sdpa")] if options.quick else plans:  # FlexAttention has no backward pass on CPUs
        arguments = ["--size", "tiny" if options.quick else "1b", "--rows", "1", "--row-length", str(length)]
        arguments += ["--document-length", str(length // 4), "--attention", attention, "--prompt-shares", "0", "--bf16"]
        arguments += ["--activation-checkpointing", "--repeats", "1" if options.quick else "6", "--warmup", "1"]
        its = training_step.parse_options(arguments)
        its.quick = options.quick  # memory is then counted in this process
        yield f"{length}, {attention}", partial(training_step.measured, its)


def recipe_pieces(options: argparse.Namespace) -> Iterator[tuple[str, Piece]]:
    """Train the recipes in the order of their stages, then decode held-out documents of the last one's data."""
    recipes = options.recipes or []
    if not recipes:
        note("recipe: no --recipes; left out")
        return
    for recipe in recipes:
        yield f"train {recipe.stem}", partial(trained_by, recipe, options)
    for gamma in (0.01, 0.1, 0.35):
        yield f"decode, gamma {gamma:g}", partial(recipe_decoded, recipes[-1], gamma, options)


def trained_by(recipe: Path, options: argparse.Namespace) -> dict[str, Any]:
    """`setblock train`, stopped when the time is up; it goes on from its newest checkpoint."""
    left = max(5.0, options.until - time.monotonic())
    started = time.monotonic()
    overrides = [part for each in options.set for part in ("--set", each)]
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
    return {"seconds_of_this_run": time.monotonic() - started}


def recipe_decoded(recipe: Path, gamma: float, options: argparse.Namespace) -> dict[str, Any]:
    """All methods on the beginnings of held-out documents, in turns: passes, seconds, and tokens as plain decoding has them."""
    section, args = load_recipe(recipe, overrides=dict(map(parse_override, options.set)))
    sbd = setblock.load(options.runs / args.output_dir, dtype=None if options.quick else torch.bfloat16)
    rows = rows_of(section.data, sbd.tokenizer, context_length=context_length_of(sbd.model.config)).evaluation
    if rows is None:
        raise ValueError(f"{recipe} holds out no documents to evaluate on")
    tokens, prompt = (8, 8) if options.quick else (128, 128)
    texts = [rows[i]["input_ids"] for i in range(min(len(rows), 2 if options.quick else 16))]
    prompts = [list(map(int, ids[:prompt])) for ids in texts]
    limit: dict[str, Any] = {"block_size": options.block_size, "max_new_tokens": tokens}
    contenders = [
        transformers(side_by_side.PLAIN, sbd.model, max_new_tokens=tokens),
        transformers("Transformers prompt lookup", sbd.model, max_new_tokens=tokens, prompt_lookup_num_tokens=10),
        ours(side_by_side.OURS_PLAIN, sbd, DecodingSettings(method="ntp", max_new_tokens=tokens)),
        ours(
            "ours, blocks", sbd, DecodingSettings(method="sbd", sampler=setblock.EntropyBounded(gamma=gamma), **limit)
        ),
        ours("ours, exact", sbd, DecodingSettings(method="exact", **limit)),
    ]
    its = side_by_side.parse_options(["--rounds", "1" if options.quick else "3"])
    row = side_by_side.compared(sbd, contenders, prompts, its, tokens=tokens)
    answers = row.pop("answers")
    plain = answers[side_by_side.OURS_PLAIN]
    for name, each in answers.items():
        same = [_same_tokens(mine, other) for mine, other in zip(each, plain, strict=True)]
        row["contenders"][name]["tokens_until_different"] = statistics.mean(same)
    return row | {"gamma": gamma, "prompts": len(prompts)}


def _same_tokens(mine: list[int], other: list[int]) -> int:
    """How many tokens two answers begin with alike."""
    alike = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(mine, other, strict=False))
    return sum(1 for _ in alike)


def _prediction(sbd: SBDModel, options: argparse.Namespace) -> Prediction:
    return Prediction(
        shape=shape_of(sbd.model.config),
        hardware=roofline_hardware(getattr(torch, options.dtype), device=DEVICE, quick=options.quick),
        precision=Precision.of(options.dtype),
    )


def _once(make: Callable[[], SBDModel]) -> Callable[[], SBDModel]:
    """A model that is made when it is first asked for, and not at all where all of its pieces are there."""
    made: list[SBDModel] = []

    def get() -> SBDModel:
        if not made:
            made.append(make())
        return made[0]

    return get


STAGES: dict[str, Callable[[argparse.Namespace], Iterator[tuple[str, Piece]]]] = {
    "machine": machine_pieces,
    "checks": check_pieces,
    "breakdown": breakdown_pieces,
    "passes": pass_pieces,
    "graphs": graph_pieces,
    "growth": growth_pieces,
    "side_by_side": side_by_side_pieces,
    "training": training_pieces,
    "recipe": recipe_pieces,
}


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--stages", nargs="+", choices=STAGES, default=list(STAGES), metavar="STAGE", help=f"of {', '.join(STAGES)}")
    add("--minutes", type=float, default=9, help="begin no piece after this many (9)")
    add("--size", choices=SIZES, default="8b", help="of the model whose passes and decoding are timed (8b)")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32], metavar="B")
    add("--kv-lengths", nargs="+", type=int, default=[1024, 8192], metavar="L")
    add("--block-size", type=int, default=16)
    add("--repeats", type=int, default=20, help="of each pass (20)")
    add("--recipes", nargs="+", type=Path, help="of the stage `recipe`, in order; the last one's model is decoded with")
    add("--set", action="append", default=[], metavar="KEY=VALUE", help="of those recipes, as of setblock train")
    add("--runs", type=Path, default=Path(), help="the folder that recipes name their outputs from")
    options = parser.parse_args(arguments)
    if options.quick:
        tiny = {
            "size": "tiny",
            "dtype": "float32",
            "batches": [1, 2],
            "kv_lengths": [32],
            "block_size": 4,
            "repeats": 1,
        }
        vars(options).update(tiny)
    elif DEVICE.type == "cpu":
        parser.error("there is no GPU; --quick runs all stages in miniature")
    options.until = time.monotonic() + 60 * options.minutes
    return options


if __name__ == "__main__":
    main()
