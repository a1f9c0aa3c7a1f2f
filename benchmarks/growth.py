"""Measure how the gain grows and ends with the batch and with the length of the cache: time per token of ours and of
Transformers'.

    python benchmarks/growth.py --batches 1 2 4 8 16 32 --kv-lengths 512 --out benchmarks/results/growth_batch.json
    python benchmarks/growth.py --batches 1 8 --kv-lengths 128 512 2048 8192 --out benchmarks/results/growth_kv.json

A model of random weights, its cache filled with noise to the length that is asked for, so that a long one needs no prefill;
then `--tokens` tokens for each request by Transformers' `generate`, by our plain decoding, and by blocks with a forced NFE
speed-up, in turns. The first token of an answer, which a prefill gives, is fed like the others. Predicted is the roofline:
the passes that were counted, each as long as the model's shape and the machine's bandwidth and peak say; on a CPU those are
measured first.

With `--out` each cell is saved as it is done, and a run that was stopped resumes. `--minutes` stops it in time. A table for
people, JSON on the last line.
"""

import argparse
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import torch

from measuring.hardware import prediction_of, roofline_hardware
from measuring.output import at_least_one, begin, finish, note, parser_of, resumed, write
from measuring.subjects import SIZES, FixedCount, dynamic_cache, opened, random_model, random_prompt
from measuring.timing import seconds, spread
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel
from setblock.roofline.hardware import Hardware

PLAIN, OURS_PLAIN = "Transformers generate", "ours, plain"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    until = time.monotonic() + 60 * options.minutes
    results = begin("growth", options)
    dtype = getattr(torch, options.dtype)
    sbd = random_model(SIZES[options.size], dtype=dtype, block_size=options.block_size)
    hardware = roofline_hardware(dtype, quick=options.quick)
    results |= {"size": options.size, "dtype": options.dtype, "parameters": sbd.num_parameters}
    results |= {"block_size": options.block_size, "roofline": hardware_json(hardware)}
    cells = resumed(results, options, kept="cells")
    for kv_length in options.kv_lengths:
        for batch in options.batches:
            name = f"batch {batch}, {kv_length} cached"
            if name in cells:
                continue
            if time.monotonic() > until:
                note(f"{options.minutes:g} minutes are over; the same command goes on")
                break
            note(name)
            cells[name] = cell(sbd, batch, kv_length, options)
            if options.out:
                write(results, options.out)
    finish(results, options)


def hardware_json(hardware: Hardware) -> dict[str, Any]:
    """Return the machine's figures, for the file."""
    return {"name": hardware.name, "bandwidth": hardware.bandwidth, "peaks": dict(hardware.peaks)}


def cell(sbd: SBDModel, batch: int, kv_length: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return one batch size and one length; or why it was not measured."""
    most = kv_length + options.tokens
    prediction = prediction_of(sbd.model.config, options)
    # Ours and Transformers' caches are there in turns, but growing one by concatenation holds it twice in a layer
    needed = batch * prediction.kv_memory(most) * 1.25
    if needed > options.gib * 2**30:
        return {"batch": batch, "kv_length": kv_length, "left_out": f"its cache takes {needed / 2**30:.1f} GiB"}
    ways: dict[str, DecodingSettings] = {
        OURS_PLAIN: DecodingSettings(method="ntp", max_new_tokens=options.tokens),
        **{
            f"ours, NFE {nfe}": DecodingSettings(
                method="sbd", sampler=FixedCount(nfe), block_size=options.block_size, max_new_tokens=options.tokens
            )
            for nfe in options.nfe
            if nfe <= options.block_size
        },
    }
    times: dict[str, list[float]] = {name: [] for name in (PLAIN, *ways)}
    counts: dict[str, dict[str, int]] = {PLAIN: {"one token": options.tokens, "block": 0, "fused": 0}}
    for round_ in range(1 + options.rounds):  # the first warms up
        taken = {PLAIN: transformers_seconds(sbd, batch, kv_length, options)}
        for name, settings in ways.items():
            taken[name], counts[name] = our_seconds(sbd, settings, batch, kv_length, options)
        if round_:
            for name, each in taken.items():
                times[name].append(each)
    tokens = batch * options.tokens
    k = options.block_size
    row: dict[str, Any] = {"batch": batch, "kv_length": kv_length, "tokens": tokens, "ways": {}}
    for name, own in times.items():
        count, middle = counts[name], kv_length + options.tokens // 2
        at = {"batch": batch, "kv_length": middle}
        predicted = (
            count["one token"] * prediction.seconds(1, **at)
            + count["block"] * prediction.seconds(k, **at)
            + count["fused"] * prediction.seconds(2 * k, outputs=k, **at)
        )
        row["ways"][name] = {
            "seconds_per_token": asdict(spread([each / tokens for each in own])),
            "predicted_seconds_per_token": predicted / tokens,
            "passes": count,
            **{
                column: asdict(spread([theirs / mine for theirs, mine in zip(times[other], own, strict=True)]))
                for column, other in (("over_transformers", PLAIN), ("over_ours_plain", OURS_PLAIN))
            },
        }
    for each in row["ways"].values():
        plain = row["ways"][OURS_PLAIN]["predicted_seconds_per_token"]
        each["predicted_over_plain"] = plain / each["predicted_seconds_per_token"]
    return row


def our_seconds(
    sbd: SBDModel, settings: DecodingSettings, batch: int, kv_length: int, options: argparse.Namespace
) -> tuple[float, dict[str, int]]:
    """Return the seconds of decoding a batch by our loop, and its passes by kind."""
    requests = opened(sbd, settings, batch=batch, prompt=kv_length)

    def decode() -> None:
        for _ in requests.steps():
            pass

    taken = seconds(decode)
    passes = requests.state.counts(0)
    if settings.method == "ntp":
        return taken, {"one token": passes.total, "block": 0, "fused": 0}
    return taken, {"one token": passes.prefill, "block": passes.block, "fused": passes.commit}


def transformers_seconds(sbd: SBDModel, batch: int, kv_length: int, options: argparse.Namespace) -> float:
    """Return the seconds of decoding the same batch by Transformers' `generate` with its default cache."""
    ids = torch.tensor([random_prompt(sbd, kv_length)] * batch, device=sbd.device)
    cache = dynamic_cache(sbd, batch=batch, cached=kv_length - 1)
    return seconds(
        lambda: sbd.model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            past_key_values=cache,
            do_sample=False,
            use_cache=True,
            max_new_tokens=options.tokens,
            pad_token_id=0,
        )
    )


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--size", choices=SIZES, default="100m", help=f"of {', '.join(SIZES)} (100m)")
    add("--dtype", choices=("float32", "bfloat16"), default="bfloat16")
    add("--batches", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32], metavar="B", help="(1 2 4 8 16 32)")
    add("--kv-lengths", nargs="+", type=int, default=[512], metavar="L", help="cached positions (512)")
    add("--nfe", nargs="+", type=int, default=[4], help="forced NFE speed-ups (4)")
    add("--tokens", type=int, default=48, help="of each answer (48)")
    add("--block-size", type=int, default=16)
    add("--rounds", type=int, default=3, help="timed rounds of each cell (3)")
    add("--minutes", type=float, default=9, help="begin no cell after this many (9)")
    add("--gib", type=float, default=8, help="leave out cells whose cache takes more (8)")
    options = parser.parse_args(arguments)
    if options.quick:
        tiny = {"size": "tiny", "dtype": "float32", "batches": [1, 2], "kv_lengths": [32], "nfe": [4]}
        vars(options).update(tiny, tokens=16, rounds=1)
    at_least_one(parser, options, "batches", "kv_lengths", "nfe", "tokens", "block_size", "rounds")
    return options


if __name__ == "__main__":
    main()
