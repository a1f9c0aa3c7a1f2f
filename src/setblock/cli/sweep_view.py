"""What is shown of a sweep: its table, its JSON, its progress."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from setblock.cli.messages import stderr_console

if TYPE_CHECKING:
    from setblock.decoding.operating_point import OperatingPoint
    from setblock.evaluation.sweep import Sweep


def sweep_table(sweep: "Sweep") -> Table:
    """A line for each row; those on the Pareto front are bold."""
    from setblock.evaluation.sweep_figure import front_of, title_of

    table = Table(
        title=title_of(sweep),
        caption="●: no other is right as often in as few passes. Passes leave the prefill out; intervals are 95%.",
        title_justify="left",
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        collapse_padding=True,
        pad_edge=False,
    )
    table.add_column("setting", overflow="fold")  # a name cut short would be any sampler's
    for column in ("accuracy", "interval", "NFE speed-up", "passes", "commits", "as ntp", "tokens differ"):
        table.add_column(column, justify="right")
    rows = [sweep.ntp, *sweep.rows]
    front = front_of(rows)
    for row in rows:
        low, high = row.accuracy_interval
        speedup, differing, on_front = sweep.nfe_speedup(row), sweep.differing(row), row in front
        table.add_row(
            f"{row.point.label}{' ●' if on_front else ''}",
            f"{row.accuracy:.1%}",
            f"{100 * low:.1f} to {high:.1%}",
            "" if speedup is None else f"{speedup:.2f}",
            f"{row.mean_passes:.1f}",
            f"{sum(row.outcomes.commit) / row.num_examples:.1f}",
            f"{row.identical_to_ntp:.1%}",
            f"{sum(differing) / len(differing):.2%}",
            style="bold" if on_front else None,
        )
    return table


def sweep_json(sweep: "Sweep") -> dict[str, Any]:
    """The JSON object of a sweep: its rows without what they are counted from, and which are on the Pareto front."""
    from setblock.evaluation.sweep import row_json
    from setblock.evaluation.sweep_figure import front_of

    rows = [sweep.ntp, *sweep.rows]
    front = front_of(rows)
    left_out = ("outcomes", "token_ids", "run")
    told = []
    for row in rows:
        whole = row_json(row, run=sweep.run, ntp=sweep.ntp)
        figures = {key: value for key, value in whole.items() if key not in left_out}
        told.append({**figures, "label": row.point.label, "on_pareto_front": row in front})
    return {"run": sweep.run, "rows": told}


@contextmanager
def sweep_progress(num_points: int, num_examples: int) -> Iterator[Callable[["OperatingPoint", int], None]]:
    """A bar over all points, and one over the examples of the present one."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    console = stderr_console()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        points = progress.add_task("settings", total=num_points)
        examples = progress.add_task("", total=num_examples)

        def on_progress(point: "OperatingPoint", done: int) -> None:
            progress.update(examples, description=point.label, completed=done)
            if done == num_examples:
                progress.advance(points)

        yield on_progress
