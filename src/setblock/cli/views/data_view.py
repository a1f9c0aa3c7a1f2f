"""Show the output of `setblock data inspect`, on the terminal and as JSON."""

from dataclasses import asdict
from typing import Any

import numpy as np
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from setblock.data.packing import IGNORE, PADDING
from setblock.training.inspection import InspectedRow

_NOTHING = "·"
_MASK = "<mask>"


def print_row(console: Console, row: InspectedRow, *, limit: int | None) -> None:
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


def row_json(row: InspectedRow) -> dict[str, Any]:
    """Return all of it; null means no label, nothing to predict, and the mask token."""
    clean, _ = _halves(row)
    columns = _columns(row)
    half = {name: column[:clean].tolist() for name, column in columns.items()}
    labels = [None if label == IGNORE else label for label in row.labels.tolist()]
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


def _halves(row: InspectedRow) -> tuple[int, int]:
    clean = len(row.labels)
    return clean, len(row.predicts) - clean


def _columns(row: InspectedRow) -> dict[str, np.ndarray]:
    return {
        "input_ids": row.inputs.input_ids[0].numpy(),
        "document_ids": row.inputs.document_ids[0].numpy(),
        "position_ids": row.inputs.position_ids[0].numpy(),
        "predicts": row.predicts,
    }


def _statistics(row: InspectedRow) -> Table:
    counts = row.statistics
    table = Table(box=box.SIMPLE, show_header=False, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    if counts.rows is None:
        table.add_row("of the stream, so far", "")
    else:
        table.add_row("rows", f"{counts.rows:,}")
    table.add_row("documents", f"{counts.documents:,}")
    for name, value in (
        ("too long", counts.too_long),
        ("spelling a special token, dropped", counts.special),
        ("without anything to learn, dropped", counts.without_targets),
    ):
        if value:
            table.add_row(f"  {name}", f"{value:,}")
    table.add_row("tokens", f"{counts.tokens:,}")
    table.add_row("  that carry loss", f"{counts.targets:,} ({counts.targets / max(1, counts.tokens):.1%})")
    if counts.padding is not None:
        table.add_row("padding", f"{counts.padding:.1%}")
    return table


def _clean_table(row: InspectedRow, limit: int | None) -> Table:
    table = _table("#", "document", "position", "token", "label", "output learns")
    clean, _ = _halves(row)
    columns = _columns(row)
    for i in range(clean)[:limit]:
        is_padding = columns["document_ids"][i] == PADDING
        table.add_row(
            str(i),
            _NOTHING if is_padding else str(columns["document_ids"][i]),
            _NOTHING if is_padding else str(columns["position_ids"][i]),
            Text("padding", style="dim") if is_padding else _token(row, int(columns["input_ids"][i])),
            _NOTHING if row.labels[i] == IGNORE else _token(row, int(row.labels[i]), "green"),
            _NOTHING if row.predicts[i] < 0 else _token(row, int(row.predicts[i]), "green"),
        )
    return table


def _noisy_table(row: InspectedRow, limit: int | None) -> Table:
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
            _NOTHING if row.predicts[i] < 0 else _token(row, int(row.predicts[i]), "green"),
            end_section=ends,
        )
    return table


def _table(*names: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in names:
        is_token = name in ("token", "label", "output learns")
        table.add_column(name, justify="left" if is_token else "right", no_wrap=True)
    return table


def _token(row: InspectedRow, token_id: int, style: str = "") -> Text:
    """Return a token's text in quotes, so that its spaces and line breaks are seen; the mask token by its name."""
    if token_id == row.mask_token_id:
        return Text(_MASK, style="yellow")
    return Text(repr(row.tokenizer.decode([token_id])), style=style)


def _print_rest(console: Console, count: int, limit: int | None) -> None:
    if limit is not None and count > limit:
        console.print(Text(f"… and {count - limit} more; --tokens 0 shows all", style="dim"))
