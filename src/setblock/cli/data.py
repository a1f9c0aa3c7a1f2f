"""`setblock data inspect`: what a recipe trains on, seen before the training."""

from pathlib import Path
from typing import Annotated

import typer

from setblock.cli import options
from setblock.cli.messages import print_json, print_message, silence_data_sets, silence_libraries, stdout_console


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
