"""Merge an adapter into the model that it was trained on (`setblock merge`)."""

from pathlib import Path
from typing import Annotated

import typer

from setblock.cli.messages import silence_libraries
from setblock.cli.options.groups import option


def merge(
    adapter: Annotated[
        Path,
        typer.Argument(
            metavar="ADAPTER",
            help="A folder with an adapter: RUN/checkpoint-500, RUN/sbd_adapter, or RUN.",
            show_default=False,
        ),
    ],
    output: Path = option(..., "Folder to save the model in.", metavar="DIR", show_default=False),
    model: str | None = option(
        None,
        "Folder or hub id of the model that the adapter was trained on. Default: the model of its recipe.",
        show_default=False,
    ),
) -> None:
    """Merge an adapter into the model that it was trained on.

    The result is an ordinary checkpoint. `setblock train` merges automatically at the end of a run. Use this command for the
    adapter of an unfinished run, or to merge again.
    """
    from setblock.training.adapter.merging import merge_adapter

    silence_libraries()
    typer.echo(f"saved to {merge_adapter(adapter, output, base=model)}")
