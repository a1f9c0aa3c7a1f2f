"""Show what each forward pass did to an answer, in the terminal or as JSON (`setblock trace`)."""

from typing import Annotated

import typer

from setblock.cli import options
from setblock.cli.decoding_options import DecodingOptions
from setblock.cli.messages import print_json, stdout_console
from setblock.cli.model import ModelOptions, load_model
from setblock.cli.prompt import read_prompt
from setblock.cli.sampler import sampler_json


def trace(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="The text to answer; - reads it from stdin.")],
    model: ModelOptions,
    decoding: DecodingOptions,
    raw: options.RawOption = False,
    as_json: options.JsonOption = False,
) -> None:
    """Answer a prompt, and show for each forward pass the tokens that it revealed, their entropies, and what it committed.

    Without --json, the terminal lists the passes. Revealed tokens are bold and in brackets, and _ is a masked position.
    """
    from setblock.cli.trace_view import print_trace
    from setblock.evaluation.tracing import trace as run

    settings = decoding.settings()
    text = read_prompt(prompt)
    loaded = load_model(model, blocks=settings.method == "sbd")
    settings = decoding.settings_for(loaded)
    traced = run(loaded, text, settings=settings, raw=raw)
    if as_json:
        print_json({**traced.to_json(), **sampler_json(settings)})
    else:
        print_trace(stdout_console(), traced)
