"""Show a prediction, on the terminal and as JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from setblock.roofline.cost import LEFT_OUT
from setblock.roofline.hardware import GB, TFLOPS
from setblock.roofline.prediction import NFE_SPEEDUPS, Prediction, last_paying_batch, tables


def print_prediction(console: Console, prediction: Prediction, *, kv_length: int, block_size: int) -> None:
    """Print what is predicted and on what, both tables of the paper, and where blocks stop paying."""
    shape, hardware, precision = prediction.shape, prediction.hardware, prediction.precision
    linear, attention = (hardware.peak(bits) / TFLOPS for bits in (precision.linear_bits, precision.attention_bits))
    types = f"{precision.activations} activations, {precision.weights} weights, {precision.kv} keys and values"
    _line(console, f"{shape.name}: {_millions(shape.parameters)} weights, {_millions(shape.active_parameters)} active")
    _line(console, f"types: {types}")
    _line(
        console,
        f"{hardware.name}: {hardware.bandwidth / GB:,.0f} GB/s, {linear:,.4g} TFLOPS in linear layers, {attention:,.4g} in "
        "attention",
    )
    made, cached = tables(prediction, kv_length=kv_length, block_size=block_size), f"{kv_length:,} cached positions"
    for title, name, table in (
        (f"slowdown of a block pass over a one-token pass, {cached}", "k={}", made.slowdown),
        (f"speed-up in seconds at k={block_size}, {cached}", "NFE {}x", made.speedup),
    ):
        columns = ("batch", *(name.format(key) for key in next(iter(table.values()))))
        rows = ([str(batch), *(f"{value:.3f}" for value in row.values())] for batch, row in table.items())
        console.print(_grid(title, columns, rows))
    paying = _paying(prediction, kv_length=kv_length, block_size=block_size)
    ends = "; ".join(f"NFE {nfe}x: {_batch(batch)}" for nfe, batch in paying.items())
    fits = prediction.batch_in_memory(kv_length)
    memory = "" if fits is None else f" (in memory: {fits})"
    _line(console, f"largest batch that gains at k={block_size}, {cached}: {ends}{memory}")
    console.print(Text(f"Predictions of a roofline, not measurements. Left out: {'; '.join(LEFT_OUT)}.", style="dim"))


def roofline_json(prediction: Prediction, *, kv_length: int, block_size: int) -> dict[str, Any]:
    """Return the same, and the named costs of a one-token and a block pass: bytes, bytes and operations per second."""
    shape, hardware = prediction.shape, prediction.hardware
    made = tables(prediction, kv_length=kv_length, block_size=block_size)
    return {
        "kv_length": kv_length,
        "block_size": block_size,
        **{
            name: {str(batch): {str(key): value for key, value in row.items()} for batch, row in table.items()}
            for name, table in asdict(made).items()
        },
        "last_paying_batch": {
            str(nfe): batch for nfe, batch in _paying(prediction, kv_length=kv_length, block_size=block_size).items()
        },
        "batch_in_memory": prediction.batch_in_memory(kv_length),
        "operations": {
            str(tokens): [
                {**asdict(operation), "seconds": prediction.operation_seconds(operation)}
                for operation in prediction.operations(tokens, batch=1, kv_length=kv_length)
            ]
            for tokens in (1, block_size)
        },
        "model": {**asdict(shape), "parameters": shape.parameters, "active_parameters": shape.active_parameters},
        "hardware": {**asdict(hardware), "peaks": {str(bits): peak for bits, peak in hardware.peaks.items()}},
        "precision": asdict(prediction.precision),
        "left_out": list(LEFT_OUT),
    }


def _paying(prediction: Prediction, *, kv_length: int, block_size: int) -> dict[int, int | None]:
    return {
        nfe: last_paying_batch(prediction, nfe, block_size=block_size, kv_length=kv_length)
        for nfe in NFE_SPEEDUPS
        if nfe <= block_size
    }


def _grid(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        table.add_row(*row)
    return table


def _line(console: Console, text: str) -> None:
    console.print(Text(text), soft_wrap=True)


def _millions(count: int) -> str:
    return f"{count / 1e9:.2f} billion" if count >= 1e9 else f"{count / 1e6:.1f} million"


def _batch(batch: int | None) -> str:
    return "no end" if batch is None else str(batch) if batch else "none"
