"""Options of no group that commands share, and the panels that `--help` shows all options in."""

from typing import Annotated

import typer

from setblock.data.splits import Split

TASK, HARNESS, MODEL, DECODING = "Task", "Tasks of lm-evaluation-harness", "Model", "Decoding"
SAMPLING, OUTPUT, BATCH = "Sampling", "Output", "Many prompts"

RawOption = Annotated[
    bool,
    typer.Option("--raw", help="Continue the prompt as it stands, without a chat template.", rich_help_panel=DECODING),
]
SplitOption = Annotated[
    Split,
    typer.Option(
        "--split",
        help="Which problems: test for results, validation for choosing settings.",
        rich_help_panel=TASK,
    ),
]
JsonOption = Annotated[
    bool,
    typer.Option("--json", help="Print one JSON object on stdout, and nothing else there.", rich_help_panel=OUTPUT),
]
