"""Define the options that say which examples of which task a sweep or a calibration asks."""

from typing import Annotated

from setblock.cli.decoding_options import setting_option
from setblock.cli.options import TASK, SplitOption, option, option_group
from setblock.evaluation.sandbox import Level

LimitOption = Annotated[int, option(..., "Number of examples, at least 1.", "--limit", panel=TASK)]
BatchSizeOption = Annotated[
    int,
    option(
        ...,
        "Number of examples decoded at once, at least 1. It changes no answer and no count.",
        "--batch-size",
        panel=TASK,
    ),
]
SandboxOption = Annotated[
    Level,
    option(
        ...,
        "How programs of coding tasks are confined. confined: as far as the sandbox can. files-readable: accept that "
        "programs can read your files, if the kernel has no Landlock.",
        "--sandbox",
        panel=TASK,
    ),
]


@option_group(TASK)
class TaskOptions:
    """Hold which examples, and how they are decoded together."""

    task: str = option("word-problems", "The task; `setblock evaluate --help` lists all tasks.", metavar="NAME")
    split: SplitOption = "test"
    limit: LimitOption = 100
    seed: int = option(
        0,
        "Seed that chooses the examples of the split. A calibration also draws from it the examples that determine "
        "the order of its tests.",
    )
    batch_size: BatchSizeOption = 100  # a sweep answers many examples: wide batches waste least
    sandbox: SandboxOption = "confined"
    max_new_tokens: int | None = setting_option("max_new_tokens")
