"""The options that say which examples of which task a sweep or a calibration asks."""

from dataclasses import dataclass
from typing import Annotated

import typer

from setblock.cli import options
from setblock.evaluation.sandbox import Level

TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="NAME",
        help="What to answer; `setblock evaluate --help` lists them.",
        rich_help_panel=options.TASK,
    ),
]
LimitOption = Annotated[
    int, typer.Option("--limit", metavar="N", help="How many examples, at least 1.", rich_help_panel=options.TASK)
]
BatchSizeOption = Annotated[
    int,
    typer.Option(
        "--batch-size",
        metavar="B",
        help="Examples decoded at once, at least 1. Changes no answer and no count.",
        rich_help_panel=options.TASK,
    ),
]
SandboxOption = Annotated[
    Level,
    typer.Option(
        "--sandbox",
        help="Of tasks whose answers are run: how they are confined. confined, or files-readable to accept that they can read "
        "your files where the kernel has no Landlock.",
        rich_help_panel=options.TASK,
    ),
]


@dataclass(frozen=True, kw_only=True)
class TaskOptions:
    """Which examples, and how they are decoded together."""

    task: TaskOption = "word-problems"
    split: options.SplitOption = "test"
    limit: LimitOption = 100
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            metavar="S",
            help="Other examples of the same split; of a calibration, also which of them the order of its tests is found on.",
            rich_help_panel=options.TASK,
        ),
    ] = 0
    batch_size: BatchSizeOption = 100  # a sweep answers many examples: wide batches waste least
    sandbox: SandboxOption = "confined"
    max_new_tokens: Annotated[
        int | None,
        typer.Option(
            "--max-new-tokens",
            metavar="N",
            help="The most tokens of an answer, at least 1. Default: 256, or what the model's context has room for.",
            rich_help_panel=options.DECODING,
        ),
    ] = None
