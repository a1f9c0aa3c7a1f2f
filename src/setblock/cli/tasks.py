"""The options that say which examples of which task a sweep or a calibration asks."""

from dataclasses import dataclass
from typing import Annotated

from setblock.cli import options
from setblock.cli.decoding_options import setting_option
from setblock.evaluation.sandbox import Level

TaskOption = Annotated[
    str, options.TASK("--task", "What to answer; `setblock evaluate --help` lists them.", metavar="NAME")
]
LimitOption = Annotated[int, options.TASK("--limit", "How many examples, at least 1.", metavar="N")]
BatchSizeOption = Annotated[
    int,
    options.TASK("--batch-size", "Examples decoded at once, at least 1. Changes no answer and no count.", metavar="B"),
]
SandboxOption = Annotated[
    Level,
    options.TASK(
        "--sandbox",
        "Of tasks whose answers are run: how they are confined. confined, or files-readable to accept that they can read "
        "your files where the kernel has no Landlock.",
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
        options.TASK(
            "--seed",
            "Other examples of the same split; of a calibration, also which of them the order of its tests is found on.",
            metavar="S",
        ),
    ] = 0
    batch_size: BatchSizeOption = 100  # a sweep answers many examples: wide batches waste least
    sandbox: SandboxOption = "confined"
    max_new_tokens: Annotated[int | None, setting_option("max_new_tokens")] = None
