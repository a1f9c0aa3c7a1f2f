"""The options that say which examples of which task a sweep or a calibration asks."""

from dataclasses import dataclass
from typing import Annotated

from setblock.cli import options
from setblock.cli.decoding_options import setting_option
from setblock.evaluation.sandbox import Level

TaskOption = Annotated[
    str, options.TASK("--task", "The task; `setblock evaluate --help` lists all tasks.", metavar="NAME")
]
LimitOption = Annotated[int, options.TASK("--limit", "Number of examples, at least 1.", metavar="N")]
BatchSizeOption = Annotated[
    int,
    options.TASK(
        "--batch-size",
        "Number of examples decoded at once, at least 1. It changes no answer and no count.",
        metavar="B",
    ),
]
SandboxOption = Annotated[
    Level,
    options.TASK(
        "--sandbox",
        "How programs of coding tasks are confined. confined: as far as the sandbox can. files-readable: "
        "accept that programs can read your files, if the kernel has no Landlock.",
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
            "Seed that chooses the examples of the split. A calibration also draws from it the examples that "
            "determine the order of its tests.",
            metavar="S",
        ),
    ] = 0
    batch_size: BatchSizeOption = 100  # a sweep answers many examples: wide batches waste least
    sandbox: SandboxOption = "confined"
    max_new_tokens: Annotated[int | None, setting_option("max_new_tokens")] = None
