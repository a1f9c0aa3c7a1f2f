"""Measure accuracy and passes over a grid of settings (`setblock sweep`)."""

from pathlib import Path
from typing import TYPE_CHECKING

from rich import box
from rich.table import Table

from setblock.cli.messages import print_json, stdout_console
from setblock.cli.options.groups import JSON, OUTPUT, optional
from setblock.cli.options.model import ModelOptions, load_model
from setblock.cli.options.tasks import GridOptions, TaskOptions
from setblock.decoding.settings.operating_point import label_of
from setblock.errors import ParameterError

if TYPE_CHECKING:
    from setblock.evaluation.result import Result


def sweep(
    *,
    task: TaskOptions,
    model: ModelOptions,
    grid: GridOptions,
    output: Path | None = optional(
        "Add a line of JSON to this file for each finished setting, with the outcome of every example. The same "
        "command resumes an interrupted sweep. A file of another model, task or commit is refused.",
        panel=OUTPUT,
    ),
    results_file: Path | None = optional(
        "Show the results in the file of an earlier sweep, and decode nothing. Options of task, model and grid have no"
        " effect.",
        "--results",
        panel=OUTPUT,
    ),
    as_json: bool = JSON,
) -> None:
    """Answer the examples of a task or of a file at every setting of a grid, and compare accuracy and forward passes.

    Plain decoding (ntp) runs once, and every setting is compared with it. Passes include commits and no prefills. Intervals
    are Wilson's, at 95%. `setblock calibrate --results` reads the file that --output writes.
    """
    if results_file is not None:
        from setblock.evaluation.sweeps.result_file import read_results

        if output is not None:
            raise ParameterError("--results decodes nothing, so there is nothing for --output")
        results = read_results(results_file)
    else:
        model.check()
        chosen, asked = task.chosen()
        grids = grid.grids()
        results = task.swept(load_model(model, blocks=True), chosen, asked, grids, out=output)
    from setblock.evaluation.result import pareto_front, title_of

    front = pareto_front(results)
    if as_json:
        rows = [{**each.figures(), "label": label_of(each.point), "on_pareto_front": each in front} for each in results]
        print_json({"run": results[0].run, "rows": rows})
    else:
        stdout_console().print(_table(results, front, title_of(results)))


def _table(results: "list[Result]", front: "list[Result]", title: str) -> Table:
    table = Table(
        title=title,
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
    for each in results:
        on_front, interval = each in front, each.accuracy_interval
        table.add_row(
            f"{label_of(each.point)}{' ●' if on_front else ''}",
            "" if each.accuracy is None else f"{each.accuracy:.1%}",
            "" if interval is None else f"{100 * interval[0]:.1f} to {interval[1]:.1%}",
            "" if each.nfe_speedup is None else f"{each.nfe_speedup:.2f}",
            f"{each.mean_passes:.1f}",
            f"{sum(each.outcomes.commit) / each.num_examples:.1f}",
            f"{each.identical_to_ntp:.1%}",
            f"{1 - each.token_agreement:.2%}",
            style="bold" if on_front else None,
        )
    return table
