"""Measure what training steps cost next to a plain next-token step over the same packed rows: seconds, and peak memory.

    python benchmarks/training_step.py --out benchmarks/results/training_step.json

Rows are full of documents of one length, of which a share is prompt, that carries no loss. The plain step (objective `ntp`)
computes its logits at targets only, as the others do; one that computed all of them would be slower. The SBD step trains all
weights on one noisy copy of the targets. The adapter step trains LoRA of rank `--rank` that acts on noisy tokens only, on two
complementary copies of the targets, with frozen weights in bfloat16 under `--bf16`. Each step makes its inputs and mask, runs
forward and backward, and updates the weights by AdamW. The steps take turns in one run, and every ratio is of two steps of one
turn. Memory is the most that two steps held beyond the model's weights,
with gradients and AdamW's state, in a separate process: as Linux counts what is resident, or on a GPU as PyTorch counts
what is allocated. On a CPU the process keeps what it frees, as `setblock train` does. On a GPU, `--attention flex_attention`
skips what the mask forbids, for rows of many thousand tokens. A table for people, JSON on the last line.
"""

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from measuring.hardware import resident_bytes
from measuring.output import at_least_one, begin, finish, parser_of
from measuring.subjects import SIZES, random_model
from measuring.timing import seconds, spread
from setblock.data.packing import Document, RowDataset, as_batch, pack
from setblock.heap import keep_freed_memory
from setblock.model.adapter.adapter import gate_of
from setblock.model.attention.document_attention import attends_runs, document_attention
from setblock.model.sbd_model import SBDModel
from setblock.training.adapter import AdapterSection, add_adapter, frozen_half
from setblock.training.inputs.doubled import Targets, TrainingInputs, doubled_inputs, ntp_inputs
from setblock.training.inputs.noising import Noising
from setblock.training.loss.forward import split_head, training_loss

OBJECTIVES = ("ntp", "sbd", "adapter")
END = 0


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write."""
    options = parse_options(arguments)
    if not torch.cuda.is_available():
        keep_freed_memory(for_training=True)
    if options.memory_of:
        objective, share = options.memory_of.split(":")
        print(json.dumps(peak_bytes(objective, float(share), options)))
        return
    results = begin("training_step", options) | measured(options)
    finish(results, options)


def measured(options: argparse.Namespace) -> dict[str, Any]:
    """Return the figures of all steps, at every share of prompt tokens."""
    model = random(options).model
    results: dict[str, Any] = {
        "parameters": sum(p.numel() for p in model.parameters()),
        **{name: getattr(options, name) for name in SETTINGS},
        "shares": [],
    }
    del model
    for share in options.prompt_shares:
        steps = [step_of(objective, share, options) for objective in OBJECTIVES]
        turns = [[seconds(step) for step in steps] for _ in range(options.warmup + options.repeats)][options.warmup :]
        del steps  # and their models and optimisers with them
        memory = {objective: memory_of(objective, share, options) for objective in OBJECTIVES}
        results["shares"].append(
            {
                "prompt_share": share,
                "clean_tokens": options.rows * options.row_length,
                **{
                    f"{objective}_seconds": asdict(spread([turn[number] for turn in turns]))
                    for number, objective in enumerate(OBJECTIVES)
                },
                "ratio": asdict(spread([turn[1] / turn[0] for turn in turns])),
                "adapter_ratio": asdict(spread([turn[2] / turn[0] for turn in turns])),
                "peak_bytes": memory,
            }
        )
    return results


def step_of(objective: str, share: float, options: argparse.Namespace) -> Callable[[], object]:
    """Return one training step of a separate model, ready to be run again and again; each draws another noise and block
    size."""
    sbd = random(options, half=objective == "adapter" and options.bf16)
    model, frozen = sbd.model.train(), None
    if objective == "adapter":
        adapter = AdapterSection.model_validate({"r": options.rank, "alpha": options.rank, "only_noisy": True})
        add_adapter(sbd, adapter)
        frozen = frozen_half(model)
    if options.activation_checkpointing:
        model.activation_checkpointing_enable()
    head = None if options.cross_entropy == "plain" else split_head(model)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-5)
    gate = gate_of(model)
    rows = packed_rows(share, options)
    cast = torch.autocast(model.device.type, dtype=torch.bfloat16, enabled=options.bf16)
    steps = 0

    def step() -> None:
        nonlocal steps
        inputs = inputs_of(objective, rows, steps, options, is_flat=attends_runs(model)).to(model.device)
        targets = len(inputs.ntp.index)
        if gate is not None:
            none = inputs.ntp.index[:0]
            inputs = replace(inputs, ntp=Targets(none, none))
        with document_attention(model):
            with cast:
                loss = training_loss(
                    model,
                    inputs,
                    head=head,
                    ntp_weight=1.0,
                    matp_weight=1.0,
                    always_chunked=options.cross_entropy == "chunked",
                    clean_half=frozen,
                )
            torch.autograd.backward(loss.total / targets)
        if gate is not None:
            gate.set(None)
        optimizer.step()
        optimizer.zero_grad()
        steps += 1

    return step


def packed_rows(share: float, options: argparse.Namespace) -> dict[str, Tensor]:
    """Return full rows of documents of random tokens, the first `share` of each a prompt."""
    generator = torch.Generator().manual_seed(0)
    length = options.document_length
    learned = [i >= round(share * length) for i in range(length)]
    documents = [
        Document(
            torch.randint(5, SIZES[options.size]["vocab_size"] - 1, (length,), generator=generator).tolist(), learned
        )
        for _ in range(options.rows * options.row_length // length)
    ]
    dataset = RowDataset(pack(documents, row_length=options.row_length, pad_token_id=END))
    return as_batch([dataset[i] for i in range(options.rows)], pad_token_id=END)


def inputs_of(
    objective: str, rows: dict[str, Tensor], step: int, options: argparse.Namespace, *, is_flat: bool = False
) -> TrainingInputs:
    """Return what the trainer would make of the rows; block sizes in turn, the same for every share."""
    if objective == "ntp":
        return ntp_inputs(rows, is_flat=is_flat)
    mask = SIZES[options.size]["vocab_size"] - 1
    return doubled_inputs(
        rows,
        block_size=options.block_sizes[step % len(options.block_sizes)],
        noising=Noising(noise_on="targets")
        if objective == "sbd"
        else Noising(noise_on="targets", noisy_copies=2, complementary_masks=True),
        logit_shift=False,
        noise_ids=range(mask, mask + 1),
        end_of_text_id=END,
        context_length=CONTEXT,
        seed=(0, step),
        idle_blocks=False,
        is_flat=is_flat,
    )


def random(options: argparse.Namespace, *, half: bool = False) -> SBDModel:
    """Return the model that is trained; in half precision where its weights stay as they are."""
    config = SIZES[options.size] | ({"num_hidden_layers": options.layers} if options.layers else {})
    dtype = torch.bfloat16 if half else torch.float32
    return random_model(config, dtype=dtype, attention=options.attention, context=CONTEXT)


def memory_of(objective: str, share: float, options: argparse.Namespace) -> int | None:
    """Return `peak_bytes`, on a CPU in a separate process: what a process once held, the system may still count."""
    if options.quick or torch.cuda.is_available():
        return peak_bytes(objective, share, options)
    arguments = [sys.executable, __file__, *options.arguments, "--memory-of", f"{objective}:{share}"]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    peak: int | None = json.loads(done.stdout.splitlines()[-1])
    return peak


def peak_bytes(objective: str, share: float, options: argparse.Namespace) -> int | None:
    """Return the most that two steps held beyond the model's weights, or None where nothing counts it."""
    step = step_of(objective, share, options)
    if torch.cuda.is_available():
        held = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
    elif RESET_PEAK.exists():
        held = resident_bytes()
        RESET_PEAK.write_text("5")
    else:
        return None
    for _ in range(2):
        step()
    return (torch.cuda.max_memory_allocated() if torch.cuda.is_available() else resident_bytes("VmHWM")) - held


RESET_PEAK = Path("/proc/self/clear_refs")  # Linux: a 5 makes the peak what is resident now


SETTINGS = (
    *(
        "size",
        "layers",
        "rows",
        "row_length",
        "document_length",
        "block_sizes",
        "repeats",
        "cross_entropy",
        "bf16",
        "rank",
    ),
    *("attention", "activation_checkpointing"),
)
CONTEXT = 65_536


def parse_options(arguments: Sequence[str] | None) -> argparse.Namespace:
    """Return the options of the command line."""
    parser = parser_of(__doc__)
    add = parser.add_argument
    add("--prompt-shares", nargs="+", type=float, default=[0.0, 0.5], metavar="SHARE", help="of prompt tokens (0 0.5)")
    add("--size", choices=SIZES, default="100m", help=f"of {', '.join(SIZES)} (100m)")
    add("--layers", type=int, help="so many of them, instead of the size's own")
    add("--rows", type=int, default=4, help="of a step (4)")
    add("--row-length", type=int, default=512, help="clean tokens of a row (512)")
    add("--document-length", type=int, default=128, help="tokens of each document in it (128)")
    add("--block-sizes", nargs="+", type=int, default=[4, 8, 16], metavar="K", help="in turn (4 8 16)")
    add("--cross-entropy", choices=("auto", "plain", "chunked"), default="auto")
    add("--attention", choices=("sdpa", "flex_attention"), help="Transformers' own choice by default")
    add("--activation-checkpointing", action="store_true")
    add("--bf16", action="store_true", help="autocast to bfloat16")
    add("--rank", type=int, default=64, help="of the adapter's updates (64)")
    add("--repeats", type=int, default=15, help="timed turns of all steps (15)")
    add("--warmup", type=int, default=2)
    add("--memory-of", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    options.arguments = sys.argv[1:] if arguments is None else list(arguments)
    if options.quick:
        tiny = {"size": "tiny", "prompt_shares": [0.5], "rows": 2, "row_length": 64, "document_length": 32}
        vars(options).update(tiny, repeats=2, warmup=1, rank=4)
    for share in options.prompt_shares:
        if not 0 <= share < 1:
            parser.error(f"--prompt-shares must be at least 0 and below 1, not {share}")
    at_least_one(parser, options, "rows", "row_length", "document_length", "repeats", "rank")
    if options.row_length % options.document_length:
        parser.error(f"--row-length must be a multiple of --document-length, not {options.row_length}")
    return options


if __name__ == "__main__":
    main()
