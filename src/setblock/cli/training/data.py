"""Show what a recipe trains on before the training, and let a model answer its prompts (`setblock data`)."""

import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from setblock.cli.messages import (
    counted,
    figures_table,
    print_json,
    progress,
    resumable,
    stdout_console,
)
from setblock.cli.options.decoding_options import DecodingOptions
from setblock.cli.options.groups import JsonOption, option, option_group
from setblock.cli.options.model import ModelOptions, load_model
from setblock.cli.options.recipe import RecipeOptions
from setblock.decoding.settings.table import Method
from setblock.errors import ParameterError, SetBlockError

if TYPE_CHECKING:
    import numpy as np

    from setblock.training.inspection import InspectedRow


@option_group()
class RegenerateOptions(DecodingOptions):
    """Hold how answers are written: one token a pass, by default."""

    method: Method = option(
        "ntp", "ntp: one token per pass. exact: the same text in blocks. sbd: blocks without a check."
    )


def inspect(
    recipe: RecipeOptions,
    row: int = option(0, "Number of the row to show, from 0.", min=0),
    tokens: int = option(48, "Number of tokens to show of each half; 0 for all.", min=0),
    evaluation: bool = option(False, "Show a row of the evaluation data instead."),
    as_json: JsonOption = False,
) -> None:
    """Show one packed row of a recipe's data as the trainer gets it, and statistics of all rows.

    The command shows the tokens, labels, documents and positions of the row, and its noisy blocks in the first step. It
    trains nothing and loads no weights.
    """
    from setblock.training.inspection import inspected_row

    checked, arguments = recipe.load()
    inspected = inspected_row(checked, arguments, row=row, evaluation=evaluation)
    if as_json:
        print_json(row_json(inspected))
    else:
        print_row(stdout_console(), inspected, limit=tokens or None)


def tokenise(
    recipe: RecipeOptions,
    output: Annotated[Path, option(..., "The folder to write.", "--output", metavar="DIR")],
    processes: int = option(1, "Number of processes that tokenise. The result does not depend on it.", min=1),
) -> None:
    """Tokenise and pack a recipe's data into a folder, for data.tokenised of the recipe.

    Each process of a training then reads its rows from the folder alone, and a resumed run starts at once. The same command
    resumes after an interruption.
    """
    from setblock.data.corpus.tokenised import tokenise as run
    from setblock.data.rows import limits_of
    from setblock.training.run.train import context_length_of, starting_tokenizer

    checked, _ = recipe.load()
    config, tokenizer = starting_tokenizer(checked.model, checked.data)
    limits = limits_of(checked.data, context_length=context_length_of(config))
    with resumable(), progress() as tell:
        census = run(
            checked.data,
            tokenizer,
            output,
            limits=limits,
            processes=processes,
            on_progress=lambda done: tell("documents", done, None),
        )
    typer.echo(f"{counted(census.kept, 'document')}, {census.tokens:,} tokens in {output}")
    typer.echo(
        f"next: setblock train {shlex.quote(str(recipe.recipe))} --set data.tokenised={shlex.quote(str(output))}"
    )


def regenerate(
    recipe: RecipeOptions,
    output: Annotated[Path, option(..., "The .jsonl file to write.", "--output")],
    batch_size: int = option(32, "Number of questions answered at once. It changes no answer.", min=1),
    *,
    model: ModelOptions,
    decoding: RegenerateOptions,
) -> None:
    """Let a model answer the prompts of a recipe's data, to train it on its own answers.

    The model is --model, or by default model.path of the recipe. Method exact gives the same answers as ntp. The same command
    resumes after an interruption. Then set data.source to the file.
    """
    from setblock.data.rows import use_chat_template
    from setblock.own_text import questions_of
    from setblock.own_text import regenerate as run

    if not output.name.endswith(".jsonl"):
        raise ParameterError(f"--output must end in .jsonl, not {output.name!r}")
    checked, _ = recipe.load()
    path = checked.model.path if model.path is None else model.path
    if path is None:
        raise SetBlockError("the recipe starts from random weights: name a model with --model")
    settings = decoding.settings()
    loaded = load_model(replace(model, path=path), blocks=settings.method == "sbd")
    use_chat_template(checked.data, loaded.tokenizer)
    with resumable(), progress() as tell:
        asked, answers = run(
            loaded,
            questions_of(checked.data),
            output,
            settings=settings,
            batch_size=batch_size,
            on_progress=lambda answers: tell("answers", answers, None),
        )
    cut = asked - answers
    left_out = f"; {cut} did not end within --max-new-tokens and were left out" if cut else ""
    typer.echo(f"{counted(answers, 'answer')} in {output}{left_out}")


_NOTHING = "·"
_MASK = "<mask>"


def print_row(console: Console, row: "InspectedRow", *, limit: int | None) -> None:
    """Print the statistics of all rows, and one row: its clean half and its noisy half, a line for each token, of each half
    `limit` at most."""
    clean, noisy = _halves(row)
    console.print(_statistics(row))
    title = f"row {row.index}: {clean} clean tokens"
    if row.block_size is not None:
        title += f", {noisy} noisy ones in blocks of {row.block_size}"
    console.print(Text(title, style="bold"))
    for number, where in enumerate(row.where):
        console.print(Text(f"  document {number}: {where}", style="dim"), soft_wrap=True)
    halves = [range(clean)] if row.block_size is None else [range(clean), range(clean, clean + noisy)]
    for half in halves:
        console.print(_table(row, half[:limit], is_noisy=half.start > 0))
        if limit is not None and len(half) > limit:
            console.print(Text(f"… and {len(half) - limit} more; --tokens 0 shows all", style="dim"))


def row_json(row: "InspectedRow") -> dict[str, Any]:
    """Return all of it; null means no label, nothing to predict, and the mask token."""
    clean, _ = _halves(row)
    columns = _columns(row)
    half = {name: column[:clean].tolist() for name, column in columns.items()}
    labels = [None if label < 0 else label for label in row.labels.tolist()]
    noisy = {name: column[clean:].tolist() for name, column in columns.items()}
    noisy["input_ids"] = [None if token == row.mask_token_id else token for token in noisy["input_ids"]]
    noisy["block_starts"] = row.inputs.limits[0, clean:].tolist()
    noisy["block_ids"] = row.inputs.block_ids[0, clean:].tolist()
    for each in (half, noisy):
        each["predicts"] = [None if token < 0 else token for token in each["predicts"]]
    return {
        "row": row.index,
        "block_size": row.block_size,
        "where": row.where,
        "clean": {**half, "labels": labels},
        "noisy": None if row.block_size is None else noisy,
        "statistics": row.statistics,
    }


def _halves(row: "InspectedRow") -> tuple[int, int]:
    clean = len(row.labels)
    return clean, len(row.predicts) - clean


def _columns(row: "InspectedRow") -> "dict[str, np.ndarray]":
    return {
        "input_ids": row.inputs.input_ids[0].numpy(),
        "document_ids": row.inputs.document_ids[0].numpy(),
        "position_ids": row.inputs.position_ids[0].numpy(),
        "predicts": row.predicts,
    }


def _statistics(row: "InspectedRow") -> Table:
    counts = row.statistics
    left_out = (
        ("too long", counts["too_long"]),
        ("spelling a special token, dropped", counts["special"]),
        ("without anything to learn, dropped", counts["without_targets"]),
    )
    return figures_table(
        [
            ("rows", f"{counts['rows']:,}"),
            ("documents", f"{counts['documents']:,}"),
            *((f"  {name}", f"{count:,}") for name, count in left_out if count),
            ("tokens", f"{counts['tokens']:,}"),
            ("  that carry loss", f"{counts['targets']:,} ({counts['targets'] / max(1, counts['tokens']):.1%})"),
            ("padding", f"{counts['padding']:.1%}"),
        ]
    )


def _table(row: "InspectedRow", places: range, *, is_noisy: bool) -> Table:
    """Return a line for each of some tokens of the clean or of the noisy half."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    which, seen = ("block", "sees clean") if is_noisy else ("#", "label")
    for name in (which, "document", "position", "token", seen, "output learns"):
        is_token = name in ("token", "label", "output learns")
        table.add_column(name, justify="left" if is_token else "right", no_wrap=True)
    columns, blocks, limits = _columns(row), row.inputs.block_ids[0].tolist(), row.inputs.limits[0].tolist()
    for i in places:
        document, token_id = int(columns["document_ids"][i]), int(columns["input_ids"][i])
        is_padding = document < 0 and not is_noisy
        table.add_row(
            str(blocks[i] if is_noisy else i),
            _NOTHING if is_padding else str(document),
            _NOTHING if is_padding else str(columns["position_ids"][i]),
            Text("padding", style="dim") if is_padding else _token(row, token_id),
            f"before {limits[i]}" if is_noisy else _token(row, int(row.labels[i]), "green"),
            _token(row, int(row.predicts[i]), "green"),
            end_section=is_noisy and blocks[i] != blocks[min(i + 1, len(blocks) - 1)],
        )
    return table


def _token(row: "InspectedRow", token_id: int, style: str = "") -> Text:
    """Return a token's text in quotes, so that its spaces and line breaks are seen; the mask token by its name, none as a
    dot."""
    if token_id < 0:
        return Text(_NOTHING)
    if token_id == row.mask_token_id:
        return Text(_MASK, style="yellow")
    return Text(repr(row.tokenizer.decode([token_id])), style=style)
