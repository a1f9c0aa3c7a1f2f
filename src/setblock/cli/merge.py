"""`setblock merge`: an adapter becomes a part of the model that it was trained on."""

from pathlib import Path
from typing import Annotated

import typer

from setblock.cli.messages import silence_libraries


def merge(
    adapter: Annotated[
        Path,
        typer.Argument(
            metavar="ADAPTER",
            help="A folder that holds an adapter: RUN/checkpoint-500, RUN/sbd_adapter, or RUN.",
            show_default=False,
        ),
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="DIR", help="Where to save the model.", show_default=False)
    ],
    base: Annotated[
        str | None,
        typer.Option(
            "--base",
            metavar="P",
            help="Folder or hub id of the model it was trained on. Default: as its recipe has it.",
            show_default=False,
        ),
    ] = None,
) -> None:
    """Merge an adapter into the model that it was trained on.

    What is saved is a checkpoint as any other. `setblock train` does this by itself at the end of a run; this is for adapters
    of an unfinished one, or to merge again.
    """
    from setblock.training.merging import merge_adapter

    silence_libraries()
    typer.echo(f"saved to {merge_adapter(adapter, output, base=base)}")
