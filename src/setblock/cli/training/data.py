"""Show what a recipe trains on before the training, and tokenise it (`setblock data`)."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from setblock.cli.messages import figures_table, print_json, progress, stdout_console
from setblock.cli.options.groups import JsonOption, option
from setblock.cli.options.recipe import RecipeOptions

if TYPE_CHECKING:
    import numpy as np

    from setblock.training.inspection import InspectedRow


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
    from setblock.data.rows import limits_of, use_chat_template
    from setblock.training.run.train import context_length_of, starting_tokenizer

    checked, _ = recipe.load()
    config, tokenizer = starting_tokenizer(checked.model, checked.data)
    use_chat_template(checked.data, tokenizer)
    limits = limits_of(checked.data, context_length=context_length_of(config))
    with progress() as tell:
        census = run(
            checked.data,
            tokenizer,
            output,
            limits=limits,
            processes=processes,
            on_progress=lambda done: tell("documents", done, None),
        )
    typer.echo(f"{census.kept} documents, {census.tokens:,} tokens in {output}")
    typer.echo(
        f"next: setblock train {shlex.quote(str(recipe.recipe))} --set data.tokenised={shlex.quote(str(output))}"
    )


_NOTHING = "·"
_MASK = "<mask>"


def print_row(console: Console, row: "InspectedRow", *, limit: int | None) -> None:
    """Print the statistics of all rows, and one row: its clean half and its noisy half, a line for each token.

    Args:
        limit: how many tokens of each half to print; None: all.
    """
    clean, noisy = _halves(row)
    console.print(_statistics(row))
    title = f"row {row.index}: {clean} clean tokens"
    if row.block_size is not None:
        title += f", {noisy} noisy ones in blocks of {row.block_size}"
    console.print(Text(title, style="bold"))
    for number, where in enumerate(row.where or []):
        console.print(Text(f"  document {number}: {where}", style="dim"), soft_wrap=True)
    console.print(_clean_table(row, limit))
    _print_rest(console, clean, limit)
    if row.block_size is not None:
        console.print(_noisy_table(row, limit))
        _print_rest(console, noisy, limit)


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
        "statistics": asdict(row.statistics),
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
        ("too long", counts.too_long),
        ("spelling a special token, dropped", counts.special),
        ("without anything to learn, dropped", counts.without_targets),
    )
    return figures_table(
        [
            ("of the stream, so far", "") if counts.rows is None else ("rows", f"{counts.rows:,}"),
            ("documents", f"{counts.documents:,}"),
            *((f"  {name}", f"{count:,}") for name, count in left_out if count),
            ("tokens", f"{counts.tokens:,}"),
            ("  that carry loss", f"{counts.targets:,} ({counts.targets / max(1, counts.tokens):.1%})"),
            *([] if counts.padding is None else [("padding", f"{counts.padding:.1%}")]),
        ]
    )


def _clean_table(row: "InspectedRow", limit: int | None) -> Table:
    table = _table("#", "document", "position", "token", "label", "output learns")
    clean, _ = _halves(row)
    columns = _columns(row)
    for i in range(clean)[:limit]:
        is_padding = columns["document_ids"][i] < 0
        table.add_row(
            str(i),
            _NOTHING if is_padding else str(columns["document_ids"][i]),
            _NOTHING if is_padding else str(columns["position_ids"][i]),
            Text("padding", style="dim") if is_padding else _token(row, int(columns["input_ids"][i])),
            _token(row, int(row.labels[i]), "green"),
            _token(row, int(row.predicts[i]), "green"),
        )
    return table


def _noisy_table(row: "InspectedRow", limit: int | None) -> Table:
    table = _table("block", "document", "position", "token", "sees clean", "output learns")
    clean, noisy = _halves(row)
    columns, blocks = _columns(row), row.inputs.block_ids[0].tolist()
    for i in range(clean, clean + noisy)[:limit]:
        ends = i + 1 == clean + noisy or blocks[i] != blocks[i + 1]
        table.add_row(
            str(blocks[i]),
            str(columns["document_ids"][i]),
            str(columns["position_ids"][i]),
            _token(row, int(columns["input_ids"][i])),
            f"before {int(row.inputs.limits[0, i])}",
            _token(row, int(row.predicts[i]), "green"),
            end_section=ends,
        )
    return table


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        is_token = name in ("token", "label", "output learns")
        table.add_column(name, justify="left" if is_token else "right", no_wrap=True)
    return table


def _token(row: "InspectedRow", token_id: int, style: str = "") -> Text:
    """Return a token's text in quotes, so that its spaces and line breaks are seen; the mask token by its name, none as a
    dot."""
    if token_id < 0:
        return Text(_NOTHING)
    if token_id == row.mask_token_id:
        return Text(_MASK, style="yellow")
    return Text(repr(row.tokenizer.decode([token_id])), style=style)


def _print_rest(console: Console, count: int, limit: int | None) -> None:
    if limit is not None and count > limit:
        console.print(Text(f"… and {count - limit} more; --tokens 0 shows all", style="dim"))
