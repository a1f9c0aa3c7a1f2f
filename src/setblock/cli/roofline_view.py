"""How predictions look, on the terminal and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from setblock.roofline.cost import LEFT_OUT
from setblock.roofline.hardware import GB, TFLOPS
from setblock.roofline.prediction import Prediction
from setblock.roofline.tables import Tables

if TYPE_CHECKING:
    from setblock.cli.roofline_measure import MeasuredPass


def print_tables(console: Console, tables: Tables, *, kv_length: int, block_size: int) -> None:
    """Both tables of the paper."""
    console.print(
        grid(
            f"slowdown of a block pass over a one-token pass, {kv_length:,} cached positions",
            ("batch", *(f"k={k}" for k in next(iter(tables.slowdown.values())))),
            ([str(batch), *(f"{value:.3f}" for value in row.values())] for batch, row in tables.slowdown.items()),
        )
    )
    console.print(
        grid(
            f"speed-up in seconds at k={block_size}, {kv_length:,} cached positions",
            ("batch", *(f"NFE {nfe}x" for nfe in next(iter(tables.speedup.values())))),
            ([str(batch), *(f"{value:.3f}" for value in row.values())] for batch, row in tables.speedup.items()),
        )
    )


def print_subject(console: Console, prediction: Prediction) -> None:
    """What is predicted, and on what."""
    shape, hardware, precision = prediction.shape, prediction.hardware, prediction.precision
    bits = precision.linear_bits
    line(console, f"{shape.name}: {_millions(shape.parameters)} weights, {_millions(shape.active_parameters)} active")
    line(
        console,
        f"types: {precision.activations} activations, {precision.weights} weights, {precision.kv} keys and values",
    )
    line(
        console,
        f"{hardware.name}: {hardware.bandwidth / GB:,.0f} GB/s, {hardware.peak(bits) / TFLOPS:,.4g} TFLOPS in linear "
        f"layers, {hardware.peak(precision.attention_bits) / TFLOPS:,.4g} in attention",
    )


def print_paying(
    console: Console, paying: dict[int, int | None], *, kv_length: int, block_size: int, fits: int | None
) -> None:
    """Where blocks stop paying, and the batch that memory holds."""
    ends = "; ".join(f"NFE {nfe}x: {_batch(batch)}" for nfe, batch in paying.items())
    text = f"largest batch that gains at k={block_size}, {kv_length:,} cached positions: {ends}"
    line(console, text if fits is None else f"{text} (in memory: {fits})")


def print_caveat(console: Console, hint: str = "") -> None:
    """That nothing here was measured."""
    left_out = "; ".join(LEFT_OUT)
    console.print(
        Text(f"Predictions of a roofline, not measurements. Left out: {left_out}. {hint}".strip(), style="dim")
    )


def tables_json(tables: Tables) -> dict[str, Any]:
    """`slowdown[batch][k]` and `speedup[batch][nfe]`, with keys as JSON has them."""
    return {
        name: {str(batch): {str(key): value for key, value in row.items()} for batch, row in table.items()}
        for name, table in (("slowdown", tables.slowdown), ("speedup", tables.speedup))
    }


def subject_json(prediction: Prediction) -> dict[str, Any]:
    """Bytes, bytes per second and operations per second."""
    shape, hardware = prediction.shape, prediction.hardware
    return {
        "model": {**asdict(shape), "parameters": shape.parameters, "active_parameters": shape.active_parameters},
        "hardware": {**asdict(hardware), "peaks": {str(bits): peak for bits, peak in hardware.peaks.items()}},
        "precision": asdict(prediction.precision),
        "left_out": list(LEFT_OUT),
    }


def operations_json(prediction: Prediction, *, block_size: int, batch: int, kv_length: int) -> dict[str, Any]:
    """The named costs of a one-token and a block pass, by the tokens that a request is fed."""
    return {
        str(tokens): [
            {**asdict(operation), "seconds": prediction.operation_seconds(operation)}
            for operation in prediction.operations(tokens, batch=batch, kv_length=kv_length)
        ]
        for tokens in (1, block_size)
    }


def print_passes(console: Console, passes: "Sequence[MeasuredPass]", *, batch: int, kv_length: int) -> None:
    """Measured beside predicted."""
    one = passes[0]
    rows = [
        (
            str(each.block_size),
            f"{1e3 * each.median:.2f}",
            f"{1e3 * each.lower_quartile:.2f}-{1e3 * each.upper_quartile:.2f}",
            f"{1e3 * each.predicted:.2f}",
            f"{each.share:.0%}",
            f"{each.median / one.median:.2f}",
            f"{each.predicted / one.predicted:.2f}",
        )
        for each in passes
    ]
    columns = ("k", "ms", "quartiles", "predicted", "reached", "slowdown", "predicted")
    console.print(grid(f"block passes, batch {batch}, {kv_length:,} cached positions", columns, rows))


def passes_json(passes: "Sequence[MeasuredPass]") -> list[dict[str, Any]]:
    """In seconds."""
    return [asdict(each) | {"share": each.share} for each in passes]


def grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table with a title, numbers to the right."""
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="left" if column == "decoding" else "right")
    for row in rows:
        table.add_row(*row)
    return table


def line(console: Console, text: str) -> None:
    """One line, not wrapped."""
    console.print(Text(text), soft_wrap=True)


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"


def _batch(batch: int | None) -> str:
    return "no end" if batch is None else str(batch) if batch else "none"
