"""What a block pass costs beside a one-token pass, what eq. 16 predicts from that, and what decoding then takes.

    python benchmarks/block_pass.py --out benchmarks/results/block_pass.json

Times three models: the bundled one, and one of random weights, large enough that reading its weights dominates, in
float32 and in bfloat16. In each, all passes are interleaved in one run. Tables for people, JSON on the last line.

    library   `setblock.decoding.passes.run_pass`: the pass as decoding runs it, with building inputs and mask
    model     the same forward pass alone, its inputs, mask and cache slots made beforehand

Predictions are made from the `library` times. Measured speed-ups are seconds of plain decoding over seconds of block
decoding by the same loop, prefill excluded on both sides, so the sampler and the state's bookkeeping are in them.
"""

import argparse
import gc
import itertools
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import setblock
from answers import Decoded, decode_timed
from hardware import provenance
from report import print_report
from setblock.data.word_problems import word_problems
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.text import encode_prompt
from setblock.model.bundled import BUNDLED_MODEL
from setblock.model.sbd_model import SBDModel
from setblock.roofline.speedup import predicted_speedup
from subjects import FixedCount, PassKind, parameters, passes, random_model
from timing import Spread, interleaved, spread

NTP = DecodingSettings(method="ntp")
NFE_SPEEDUPS = (2, 4, 8)


def main() -> None:
    """Measure, print, and write."""
    options = parse_options()
    if options.threads:
        torch.set_num_threads(options.threads)
    results: dict[str, Any] = {"benchmark": "block_pass", **provenance(), "models": {}}
    for name in options.models:
        note(options, f"{name}: loading")
        if name == "bundled":
            sbd = setblock.load(options.checkpoint)
        else:
            sbd = random_of(options, dtype=getattr(torch, name.removeprefix("random-")))
        results["models"][name] = measured(sbd, name, options)
        del sbd
        gc.collect()
    if not options.json_only:
        print_report(results)
    results = rounded(results)
    line = json.dumps(results)
    if options.out:
        Path(options.out).parent.mkdir(parents=True, exist_ok=True)
        Path(options.out).write_text(json.dumps(results, indent=1) + "\n")
    print(line)


def measured(sbd: SBDModel, name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Everything about one model."""
    k = options.block_size
    note(options, f"{name}: passes")
    times = time_passes(sbd, options)
    library = {key: each["library"].median for key, each in times.items()}
    cost = {"one_token": library["one token"], "block": library[f"block {k}"], "fused": library[f"fused {k}"]}
    note(options, f"{name}: decoding")
    decoding = [decode_problems(sbd, options)] if name == "bundled" else decode_forced(sbd, options)
    for row in decoding:
        row["predicted_speedup"] = predicted_speedup(k / row["nfe_speedup"], block_size=k, **cost)
        row["measured_over_predicted"] = row["speedup"]["median"] / row["predicted_speedup"]
    return {
        "parameters": parameters(sbd),
        "dtype": str(sbd.model.dtype).removeprefix("torch."),
        "kv_length": options.kv_length,
        "passes": [
            {
                "pass": key,
                "library": asdict(each["library"]),
                "model": asdict(each["model"]),
                "passes_per_second": 1 / each["library"].median,
                "over_one_token": each["library"].median / library["one token"],
                "model_over_one_token": each["model"].median / times["one token"]["model"].median,
            }
            for key, each in times.items()
        ],
        "block_size": k,
        "eq_16": {str(nfe): predicted_speedup(k / nfe, block_size=k, **cost) for nfe in NFE_SPEEDUPS if nfe <= k},
        "decoding": decoding,
    }


def time_passes(sbd: SBDModel, options: argparse.Namespace) -> dict[str, dict[str, Spread]]:
    """The one-token pass, and the block and fused pass of every block size: `library` and `model` times of each."""
    wanted: list[tuple[str, PassKind, int]] = [("one token", "one token", 1)]
    for k in sorted({*options.block_sizes, options.block_size}):
        wanted += [(f"block {k}", "block", k), (f"fused {k}", "fused", k)]
    actions = {}
    for name, kind, k in wanted:
        for column, action in passes(sbd, kind, block_size=k, kv_length=options.kv_length).items():
            actions[f"{name}/{column}"] = action
    times = interleaved(actions, repeats=options.repeats)
    return {name: {column: times[f"{name}/{column}"] for column in ("library", "model")} for name, _, _ in wanted}


def decode_problems(sbd: SBDModel, options: argparse.Namespace) -> dict[str, Any]:
    """Held-out problems one by one, each by both methods in turn, the whole set several times over."""
    problems = list(itertools.islice(word_problems("test", seed=options.seed), options.problems))
    prompts = [encode_prompt(sbd.tokenizer, problem.question) for problem in problems]
    in_blocks = DecodingSettings(block_size=options.block_size, sampler=setblock.EntropyBounded(gamma=options.gamma))
    decode_timed(sbd, prompts[0], settings=NTP)  # warm-up
    rounds = []
    for _ in range(options.rounds):
        ntp = blocks = Decoded()
        for prompt in prompts:
            ntp += decode_timed(sbd, prompt, settings=NTP)
            blocks += decode_timed(sbd, prompt, settings=in_blocks)
        rounds.append((ntp, blocks))
    return compared(rounds) | {"problems": len(prompts), "gamma": options.gamma}


def decode_forced(sbd: SBDModel, options: argparse.Namespace) -> list[dict[str, Any]]:
    """The same number of tokens by plain decoding and with each NFE speed-up forced, in turn, several times over."""
    k, tokens = options.block_size, options.tokens
    start = max(1, options.kv_length - tokens // 2)  # the cache is of the passes' length on average
    prompt = torch.randint(5, sbd.model.config.vocab_size - 1, (start,), generator=torch.Generator().manual_seed(1))
    plain = DecodingSettings(method="ntp", max_new_tokens=tokens)
    in_blocks = DecodingSettings(block_size=k, max_new_tokens=tokens)
    forced = [nfe for nfe in NFE_SPEEDUPS if nfe <= k]
    rounds: dict[int, list[tuple[Decoded, Decoded]]] = {nfe: [] for nfe in forced}
    for _ in range(options.rounds):
        ntp = decode_timed(sbd, prompt.tolist(), settings=plain)
        for nfe in forced:
            blocks = decode_timed(sbd, prompt.tolist(), settings=replace(in_blocks, sampler=FixedCount(nfe)))
            rounds[nfe].append((ntp, blocks))
    return [compared(rounds[nfe]) | {"forced": nfe} for nfe in forced]


def compared(rounds: list[tuple[Decoded, Decoded]]) -> dict[str, Any]:
    """Speed-ups in passes and in seconds, of block decoding over plain decoding, from several rounds of both."""
    ntp, blocks = rounds[0]
    return {
        "nfe_speedup": ntp.passes / blocks.passes,
        "speedup": asdict(spread([n.seconds / b.seconds for n, b in rounds])),
        "speedup_with_prefill": asdict(
            spread([(n.seconds + n.prefill_seconds) / (b.seconds + b.prefill_seconds) for n, b in rounds])
        ),
        "ntp": asdict(ntp),
        "sbd": asdict(blocks),
    }


def random_of(options: argparse.Namespace, *, dtype: torch.dtype) -> SBDModel:
    """The random-weight model of the options."""
    return random_model(hidden=options.hidden, layers=options.layers, vocabulary=options.vocabulary, dtype=dtype)


def rounded(value: Any) -> Any:
    """The same with six significant digits: more than any clock here has."""
    if isinstance(value, dict):
        return {key: rounded(each) for key, each in value.items()}
    if isinstance(value, list):
        return [rounded(each) for each in value]
    return float(f"{value:.6g}") if isinstance(value, float) else value


def note(options: argparse.Namespace, text: str) -> None:
    """Say what is being done."""
    if not options.json_only:
        print(f"== {text}", flush=True)


def parse_options() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    models = ("bundled", "random-float32", "random-bfloat16")
    add = parser.add_argument
    add("--models", nargs="+", choices=models, default=models, metavar="MODEL", help=f"of {', '.join(models)}")
    add("--checkpoint", default=str(BUNDLED_MODEL), metavar="PATH", help="timed in the bundled model's place")
    add("--block-sizes", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32], metavar="K", help="timed: 1 2 4 8 16 32")
    add("--block-size", type=int, default=16, help="decoded with, and predicted for (16)")
    add("--kv-length", type=int, default=256, help="cached positions when a pass is timed (256)")
    add("--repeats", type=int, default=40, help="timed repeats of each pass, interleaved (40)")
    add("--rounds", type=int, default=3, help="repeats of each decoding, interleaved (3)")
    add("--problems", type=int, default=50, help="held-out problems that the bundled model decodes (50)")
    add("--gamma", type=float, default=0.1, help="entropy bound, in nats, on the bundled model (0.1)")
    add("--seed", type=int, default=0, help="of the problems (0)")
    add("--tokens", type=int, default=128, help="tokens that the random models decode (128)")
    add("--hidden", type=int, default=1024, help="width of the random model, a multiple of 64 (1024)")
    add("--layers", type=int, default=16, help="layers of the random model (16)")
    add("--vocabulary", type=int, default=32000, help="vocabulary of the random model (32000)")
    add("--threads", type=int, help="PyTorch's threads (its own choice)")
    add("--quick", action="store_true", help="tiny sizes: checks that it runs, measures nothing")
    add("--out", metavar="FILE", help="write the JSON there too, indented")
    add("--json-only", action="store_true", help="print the JSON line only")
    options = parser.parse_args()
    if options.quick:
        tiny = {"block_sizes": [1, 4], "block_size": 4, "kv_length": 32, "repeats": 2, "rounds": 1, "problems": 2}
        vars(options).update(tiny, tokens=16, hidden=64, layers=2, vocabulary=768)
    if options.hidden % 64 or options.hidden < 64:
        parser.error(f"--hidden must be a multiple of 64, not {options.hidden}")
    for name in ("block_size", "kv_length", "repeats", "rounds", "problems", "tokens", "layers"):
        if getattr(options, name) < 1:
            parser.error(f"--{name.replace('_', '-')} must be at least 1, not {getattr(options, name)}")
    if min(options.block_sizes) < 1:
        parser.error(f"--block-sizes must be at least 1, not {min(options.block_sizes)}")
    return options


if __name__ == "__main__":
    main()
