"""`setblock sweep`: accuracy and passes over a grid of settings."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from setblock.cli import options
from setblock.cli.grid_options import GridOptions
from setblock.cli.messages import print_json, stdout_console
from setblock.cli.model import ModelOptions, load_model
from setblock.cli.tasks import DEFAULT_BATCH_SIZE, BatchSizeOption, MaxNewTokensOption, TaskOption
from setblock.data.splits import Split
from setblock.data.tasks import task_named
from setblock.decoding.settings import DecodingSettings
from setblock.errors import ParameterError

if TYPE_CHECKING:
    from setblock.evaluation.sweep import Sweep


def sweep(
    *,
    task: TaskOption = "word-problems",
    split: options.SplitOption = "test",
    limit: Annotated[
        int,
        typer.Option("--limit", metavar="N", help="How many examples, at least 1.", rich_help_panel=options.TASK),
    ] = 100,
    seed: Annotated[
        int,
        typer.Option("--seed", metavar="S", help="Other examples of the same split.", rich_help_panel=options.TASK),
    ] = 0,
    batch_size: BatchSizeOption = DEFAULT_BATCH_SIZE,
    model: ModelOptions,
    grid: GridOptions,
    max_new_tokens: MaxNewTokensOption = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            metavar="FILE",
            help="Write a line of JSON for each setting as it is done, with the outcome of every example. The same command "
            "goes on where an interrupted one stopped; another model, task or commit is told and refused.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    from_file: Annotated[
        Path | None,
        typer.Option(
            "--from",
            metavar="FILE",
            help="Decode nothing: show what the file of a sweep holds. Options of task, model and grid have no effect.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    figures: Annotated[
        list[Path] | None,
        typer.Option(
            "--figure",
            metavar="FILE",
            help="Draw accuracy against passes with the Pareto front (.png, .svg or .pdf); may be given again.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option(
            "--page",
            metavar="FILE",
            help="Write one HTML page with the picture, its details on hover, and the table.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Answer a task's examples at every setting of a grid: accuracy against forward passes, and which settings are best.

    Plain decoding (ntp) runs once and is what all others are compared with. Passes leave the prefill out and count commits;
    intervals are Wilson's, at 95%. A file of results is what `setblock calibrate --sweep` reads.
    """
    from setblock.evaluation.sweep_figure import SUFFIXES, draw_sweep
    from setblock.evaluation.sweep_file import read_sweep
    from setblock.evaluation.sweep_page import write_page

    for figure in figures or ():  # before hours of decoding
        if figure.suffix not in SUFFIXES:
            raise ParameterError(f"--figure must end in one of {', '.join(SUFFIXES)}, not {figure.name!r}")
    if from_file is not None:
        if out is not None:
            raise ParameterError("--from decodes nothing, so there is nothing for --out")
        found = read_sweep(from_file)
    else:
        found = _run(
            task, split, seed, limit, batch_size, model, grid, DecodingSettings(max_new_tokens=max_new_tokens), out
        )
    for figure in figures or ():
        draw_sweep(found, figure)
    if page is not None:
        write_page(found, page)
    _show(found, as_json=as_json)


def _run(
    task: str,
    split: Split,
    seed: int,
    limit: int,
    batch_size: int,
    model: ModelOptions,
    grid: GridOptions,
    shared: DecodingSettings,
    out: Path | None,
) -> "Sweep":
    from setblock.cli.sweep_view import sweep_progress
    from setblock.evaluation.grid import points_of
    from setblock.evaluation.sweep_run import run_sweep

    chosen = task_named(task)
    grids = grid.grids()
    loaded = load_model(model, blocks=True)
    points = points_of(loaded, grids)
    with sweep_progress(len(points) + 1, limit) as on_progress:
        return run_sweep(
            loaded,
            chosen,
            points,
            split=split,
            seed=seed,
            path=out,
            shared=shared,
            limit=limit,
            batch_size=batch_size,
            on_progress=on_progress,
        )


def _show(sweep: "Sweep", *, as_json: bool) -> None:
    from setblock.cli.sweep_view import sweep_json, sweep_table

    if as_json:
        print_json(sweep_json(sweep))
    else:
        stdout_console().print(sweep_table(sweep))
