"""`setblock data`: what a recipe trains on, seen before the training, and answers of a model's own."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from setblock.cli import options
from setblock.cli.decoding_options import DecodingOptions
from setblock.cli.messages import (
    print_json,
    print_message,
    progress,
    silence_data_sets,
    silence_libraries,
    stdout_console,
)
from setblock.cli.model import ModelOptions, load_model
from setblock.decoding.settings import Method
from setblock.errors import ParameterError, SetBlockError


@dataclass(frozen=True, kw_only=True)
class RegenerateOptions(DecodingOptions):
    """How answers are written: one token a pass, unless it is said otherwise."""

    method: Annotated[
        Method,
        typer.Option("--method", help="ntp: one token a pass. exact: the same text in blocks. sbd: in blocks."),
    ] = "ntp"


def inspect(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file; see recipes/.", show_default=False)],
    row: Annotated[int, typer.Option("--row", metavar="N", min=0, help="Which row to show, counted from 0.")] = 0,
    tokens: Annotated[
        int, typer.Option("--tokens", metavar="N", min=0, help="Tokens of each half to show; 0: all of them.")
    ] = 48,
    evaluation: Annotated[bool, typer.Option("--evaluation", help="Show the rows to evaluate on instead.")] = False,
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Replace a value of the recipe, such as data.row_length=512; may be given again.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[
        Path | None,
        typer.Option(
            "--picture", metavar="FILE", help="Draw the row's attention mask, as PNG, PDF or SVG.", show_default=False
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Show one packed row of a recipe's data as the trainer gets it, and count what is in all of them.

    The row's tokens and labels, documents and positions, and its noisy blocks as they are drawn in the first step. Nothing is
    trained, and no weights are loaded.
    """
    from setblock.cli.data_row import inspected_row
    from setblock.cli.data_view import print_row, row_json
    from setblock.training.recipe import load_recipe, parse_override

    silence_libraries()
    silence_data_sets()
    checked, arguments = load_recipe(recipe, overrides=dict(parse_override(text) for text in overrides or []))
    inspected = inspected_row(checked, arguments, row=row, evaluation=evaluation)
    if as_json:
        print_json(row_json(inspected))
    else:
        print_row(stdout_console(), inspected, limit=tokens or None)
    if picture is not None:
        from setblock.cli.data_picture import draw_attention

        draw_attention(inspected, picture)
        print_message(f"wrote {picture}")


def regenerate(
    recipe: Annotated[Path, typer.Argument(metavar="RECIPE", help="A YAML file; see recipes/.", show_default=False)],
    output: Annotated[Path, typer.Option("--output", metavar="FILE", help="A .jsonl file.", show_default=False)],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="SECTION.KEY=VALUE",
            help="Replace a value of the recipe, such as data.documents=1000; may be given again.",
            show_default=False,
        ),
    ] = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="B", min=1, help="Questions answered at once. Changes no answer.")
    ] = 32,
    *,
    model: ModelOptions,
    decoding: RegenerateOptions,
) -> None:
    """Let a model answer the prompts of a recipe's data itself, for it to be trained on its own answers.

    The model is --model, or else the recipe's model.path. Answers are written one token a pass, unless --method says otherwise
    (exact writes the same text). Run again after an interruption, the same command goes on. Then name the file as data.source.
    """
    from setblock.data.rows import use_chat_template
    from setblock.regeneration import questions_of
    from setblock.regeneration import regenerate as run
    from setblock.training.recipe import load_recipe, parse_override

    if not output.name.endswith(".jsonl"):
        raise ParameterError(f"--output must end in .jsonl, not {output.name!r}")
    silence_libraries()
    silence_data_sets()
    checked, _ = load_recipe(recipe, overrides=dict(parse_override(text) for text in overrides or []))
    path = model.path or checked.model.path
    if path is None:
        raise SetBlockError("the recipe starts from random weights: name the model that answers with --model")
    settings = decoding.settings()
    loaded = load_model(replace(model, path=path), blocks=settings.method != "ntp")
    use_chat_template(checked.data, loaded.tokenizer)
    with progress() as tell:
        done = run(
            loaded,
            questions_of(checked.data),
            output,
            settings=settings,
            batch_size=batch_size,
            on_progress=lambda done: tell("answers", done.answers, None),
        )
    cut = done.questions - done.answers
    left_out = f"; {cut} did not end within --max-new-tokens and were left out" if cut else ""
    typer.echo(f"{done.answers} answers in {output}{left_out}")
