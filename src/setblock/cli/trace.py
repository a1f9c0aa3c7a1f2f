"""`setblock trace`: what each forward pass did to an answer, in the terminal, as a page, or as JSON."""

import os
import tempfile
from pathlib import Path
from typing import Annotated

import typer

from setblock.cli import options
from setblock.cli.decoding_options import DecodingOptions
from setblock.cli.messages import print_json, print_message, stdout_console
from setblock.cli.model import ModelOptions, load_model
from setblock.cli.prompt import read_prompt
from setblock.cli.sampler import sampler_json
from setblock.errors import SetBlockError


def trace(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to answer; - reads it from stdin.")],
    model: ModelOptions,
    decoding: DecodingOptions,
    raw: options.RawOption = False,
    page: Annotated[
        Path | None,
        typer.Option(
            "--html",
            metavar="FILE",
            help="Write a page that plays the passes back: one file, to open in any browser.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Answer a prompt and show what each forward pass did: what it revealed, how uncertain it was, what it committed.

    Without --html or --json, the passes are listed in the terminal: what a pass revealed is bold and in brackets, _ is a
    position still masked.
    """
    from setblock.cli.trace_view import print_trace
    from setblock.evaluation.trace_page import trace_page
    from setblock.evaluation.tracing import trace as run

    settings = decoding.settings()
    if page is not None and not page.absolute().parent.is_dir():
        raise SetBlockError(f"can't write {page}: there is no folder {page.absolute().parent}")
    text = read_prompt(prompt)
    loaded = load_model(model, blocks=settings.method == "sbd")
    settings = decoding.settings_for(loaded)
    traced = run(loaded, text, settings=settings, raw=raw)
    if page is not None:
        _write(page, trace_page(traced))
        print_message(f"wrote {page}")
    if as_json:
        print_json({**traced.to_json(), **sampler_json(settings)})
    elif page is None:
        print_trace(stdout_console(), traced)


def _write(path: Path, text: str) -> None:
    """All of it or nothing."""
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.absolute().parent, delete=False) as file:
            file.write(text)
        os.chmod(file.name, 0o666 & ~_umask())
        os.replace(file.name, path)
    except OSError as error:
        raise SetBlockError(f"can't write {path}: {error.strerror}") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
