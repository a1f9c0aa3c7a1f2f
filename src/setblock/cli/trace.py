"""Show what each forward pass did to an answer, in the terminal or as JSON (`setblock trace`)."""

from typing import Annotated

import typer

from setblock.cli.decoding_options import DecodingOptions
from setblock.cli.messages import print_json, stdout_console
from setblock.cli.model import ModelOptions, load_model, warn_of_bundled
from setblock.cli.options import JsonOption
from setblock.cli.prompt import PromptOptions
from setblock.cli.sampler import sampler_json
from setblock.errors import ParameterError


def trace(
    prompt: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help="The text to answer; - reads it from stdin.", show_default=False),
    ] = None,
    *,
    model: ModelOptions,
    decoding: DecodingOptions,
    how: PromptOptions,
    as_json: JsonOption = False,
) -> None:
    """Answer a prompt, and show for each forward pass the tokens that it revealed, their entropies, and what it committed.

    Without --json, the terminal lists the passes. Revealed tokens are bold and in brackets, and _ is a masked position.
    """
    model.check()
    from setblock.cli.trace_view import print_trace
    from setblock.evaluation.tracing import trace as run

    settings = decoding.settings()
    asked = how.asked(prompt)
    if asked is None:
        raise ParameterError("PROMPT is missing: give a text, - to read stdin, or --messages FILE for a chat")
    warn_of_bundled(model)
    loaded = load_model(model, blocks=settings.method == "sbd")
    settings = decoding.settings_for(loaded)
    traced = run(loaded, asked, settings=settings, raw=how.raw)
    if as_json:
        print_json({**traced.to_json(), **sampler_json(settings)})
    else:
        print_trace(stdout_console(), traced)
