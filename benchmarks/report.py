"""Tables for people of what `block_pass.py` measured."""

from typing import Any

from rich.console import Console
from rich.table import Table


def print_report(results: dict[str, Any]) -> None:
    """Print the tables of all models."""
    console = Console()
    console.print(
        f"{results['gpu'] or results['cpu']}, {results['threads']} threads, torch {results['torch']}, {results['date']}",
        highlight=False,
    )
    for name, model in results["models"].items():
        console.print(pass_table(name, model))
        console.print(decoding_table(name, model))


def pass_table(name: str, model: dict[str, Any]) -> Table:
    """Times of passes."""
    title = (
        f"{name}: {model['parameters'] / 1e6:.1f}M parameters, {model['dtype']}, {model['kv_length']} cached positions"
    )
    table = Table(title=title, caption="median (quartiles) in ms; x: over the one-token pass", title_justify="left")
    for column in ("pass", "library", "x", "passes/s", "model only", "x"):
        table.add_column(column, justify="left" if column == "pass" else "right")
    for row in model["passes"]:
        table.add_row(
            row["pass"],
            milliseconds(row["library"]),
            f"{row['over_one_token']:.2f}",
            f"{row['passes_per_second']:.1f}",
            milliseconds(row["model"]),
            f"{row['model_over_one_token']:.2f}",
        )
    return table


def decoding_table(name: str, model: dict[str, Any]) -> Table:
    """Speed-ups over plain decoding."""
    predicted = ", ".join(f"{speedup:.2f} for {nfe}" for nfe, speedup in model["eq_16"].items())
    table = Table(
        title=f"{name}: speed-up over one token a pass, block size {model['block_size']}, prefill excluded",
        caption=f"predicted: eq. 16 from the library's pass times, which also gives {predicted}; seconds: median (quartiles)",
        title_justify="left",
    )
    for column in ("in passes", "in seconds", "predicted", "measured / predicted", "tokens/s NTP", "tokens/s SBD"):
        table.add_column(column, justify="right")
    for row in model["decoding"]:
        speedup = row["speedup"]
        table.add_row(
            f"{row['nfe_speedup']:.2f}",
            f"{speedup['median']:.2f} ({speedup['lower_quartile']:.2f}-{speedup['upper_quartile']:.2f})",
            f"{row['predicted_speedup']:.2f}",
            f"{row['measured_over_predicted']:.2f}",
            f"{row['ntp']['tokens'] / row['ntp']['seconds']:.1f}",
            f"{row['sbd']['tokens'] / row['sbd']['seconds']:.1f}",
        )
    return table


def milliseconds(times: dict[str, float]) -> str:
    """Median and quartiles."""
    median, lower, upper = (1000 * times[name] for name in ("median", "lower_quartile", "upper_quartile"))
    return f"{median:.2f} ({lower:.2f}-{upper:.2f})"
