"""The task options that sweeping and calibrating share."""

from typing import Annotated

import typer

from setblock.cli import options

TaskOption = Annotated[
    str,
    typer.Option(
        "--task",
        metavar="NAME",
        help="What to answer; `setblock evaluate --help` lists them.",
        rich_help_panel=options.TASK,
    ),
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
MaxNewTokensOption = Annotated[
    int | None,
    typer.Option(
        "--max-new-tokens",
        metavar="N",
        help="The most tokens of an answer, at least 1. Default: 256, or what the model's context has room for.",
        rich_help_panel=options.DECODING,
    ),
]
DEFAULT_BATCH_SIZE = 100  # a sweep answers many examples: wide batches waste least
