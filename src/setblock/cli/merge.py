"""`setblock merge` and `setblock push`: what is done with a model after its training."""

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


def push(
    folder: Annotated[Path, typer.Argument(metavar="FOLDER", help="A checkpoint.", show_default=False)],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="USER/NAME on the hub.", show_default=False)],
    private: Annotated[bool, typer.Option("--private", help="Make the repository private, if it is new.")] = False,
    message: Annotated[
        str | None, typer.Option("--message", metavar="TEXT", help="Of the commit.", show_default=False)
    ] = None,
) -> None:
    """Upload a checkpoint to the Hugging Face hub, its model card with it.

    Log in first: `hf auth login`, or a token in HF_TOKEN. Intermediate checkpoints stay at home.
    """
    from setblock.training.hub import push as run

    silence_libraries()
    typer.echo(f"pushed to {run(folder, repo, private=private, message=message)}")
