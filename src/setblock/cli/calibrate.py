"""`setblock calibrate`: the fastest setting that keeps a tolerance, found and written into the checkpoint."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.table import Table

from setblock.cli import options
from setblock.cli.grid_options import GridOptions
from setblock.cli.messages import print_json, stdout_console
from setblock.cli.model import ModelOptions, load_model
from setblock.cli.tasks import DEFAULT_BATCH_SIZE, BatchSizeOption, MaxNewTokensOption, TaskOption
from setblock.data.tasks import task_named
from setblock.decoding.settings import DecodingSettings
from setblock.errors import ParameterError, SetBlockError

if TYPE_CHECKING:
    from setblock.evaluation.calibration import Calibration
    from setblock.evaluation.sweep import Sweep
    from setblock.evaluation.tolerance import Tolerance
    from setblock.model.sbd_model import SBDModel

CALIBRATION = "Calibration"


def calibrate(
    *,
    tolerance: Annotated[
        str,
        typer.Option(
            "--tolerance",
            metavar="MEASURE=PERCENT",
            help="accuracy=0.5: at most half a point of accuracy less than plain decoding. tokens=1: on average at most 1% of "
            "an answer's tokens are not plain decoding's.",
            rich_help_panel=CALIBRATION,
        ),
    ] = "accuracy=0.5",
    confidence: Annotated[
        float,
        typer.Option(
            "--confidence",
            metavar="C",
            help="The probability, at least 0.5 and below 1, that a setting which loses more is not chosen.",
            rich_help_panel=CALIBRATION,
        ),
    ] = 0.95,
    domain: Annotated[
        str | None,
        typer.Option(
            "--domain",
            metavar="NAME",
            help="What the examples stand for; a model has one calibration for each domain. Default: the task, or the name of "
            "the file of prompts.",
            rich_help_panel=CALIBRATION,
        ),
    ] = None,
    sweep: Annotated[
        Path | None,
        typer.Option(
            "--sweep",
            metavar="FILE",
            help="Decode nothing: take the outcomes of a finished `setblock sweep` of this model.",
            rich_help_panel=CALIBRATION,
        ),
    ] = None,
    task: TaskOption = "word-problems",
    split: options.SplitOption = "validation",
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help='In place of a task, prompts: a JSONL file, each line an object with a text under "prompt". For a tolerance '
            "of tokens, since nobody knows the right answers.",
            rich_help_panel=options.TASK,
        ),
    ] = None,
    limit: Annotated[
        int,
        typer.Option("--limit", metavar="N", help="How many examples, at most.", rich_help_panel=options.TASK),
    ] = 1000,
    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            metavar="S",
            help="Other examples of the same split; and which of them the order of the tests is found on.",
            rich_help_panel=options.TASK,
        ),
    ] = 0,
    batch_size: BatchSizeOption = DEFAULT_BATCH_SIZE,
    model: ModelOptions,
    grid: GridOptions,
    max_new_tokens: MaxNewTokensOption = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            metavar="FOLDER",
            help="Write to a copy of the checkpoint in this new folder, and leave the model as it is.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing.", rich_help_panel=options.OUTPUT)] = False,
    as_json: options.JsonOption = False,
) -> None:
    """Find the fastest setting that loses no more than is tolerated, and make it the model's default.

    Settings are tested one after the other, from careful to careless, on examples that had no part in finding the order. If
    requests to come are like the examples, what is chosen loses more than the tolerance with a probability of at most
    1 - confidence. Exact mode loses nothing, and is chosen where no setting that passes is faster. The result is written into
    the SBD facts of the checkpoint's config.json, and is then what every command does where no option says otherwise.
    """
    from setblock.evaluation.calibration import calibrate as find
    from setblock.evaluation.prompts import prompts_of_file

    # 1. What is asked for, and whether it can be
    wanted = parse_tolerance(tolerance, confidence)
    if prompts is not None and wanted.measure == "accuracy":
        raise ParameterError("--prompts has no right answers: give a tolerance of tokens, such as --tolerance tokens=1")
    if sweep is not None and (prompts or grid != GridOptions()):
        raise ParameterError("--sweep decodes nothing: it takes the place of --prompts and the options of the grid")
    chosen = task_named(task) if prompts is None else prompts_of_file(prompts)
    if prompts is not None:
        split = "test"  # a file has no other
    grids = grid.grids()
    loaded = load_model(model, blocks=True)
    target = None if dry_run else _target(model, output)

    # 2. The outcomes
    if sweep is not None:
        found = _read(sweep, loaded)
    else:
        shared = DecodingSettings(max_new_tokens=max_new_tokens)
        found = _decode(
            loaded, chosen, split, seed, grids, shared, limit=limit, batch_size=batch_size, tolerance=wanted
        )

    # 3. The choice
    calibration = find(found, wanted, seed=seed)
    name = domain or str(found.run["task"]["name"])
    written = None
    if target is not None and calibration.chosen is not None:
        written = _write(loaded, calibration, name, found, *target)
    if as_json:
        print_json(calibration_json(calibration, domain=name, written=written))
    else:
        _show(calibration, domain=name, written=written, dry_run=dry_run)
    if calibration.chosen is None:
        raise SetBlockError(
            "no setting passed; exact mode (--method exact) keeps any tolerance, but was not in the grid"
        )


def parse_tolerance(text: str, confidence: float) -> "Tolerance":
    """The tolerance that `MEASURE=PERCENT` says.

    Raises:
        ParameterError: it is malformed or out of range.
    """
    from setblock.evaluation.tolerance import MEASURES, Tolerance

    measure, _, percent = text.partition("=")
    if measure not in MEASURES:
        raise ParameterError(f"--tolerance must be accuracy=PERCENT or tokens=PERCENT, not {text!r}")
    try:
        most = float(percent) / 100
    except ValueError as error:
        raise ParameterError(
            f"--tolerance {measure} must be a percentage, such as {measure}=0.5, not {text!r}"
        ) from error
    return Tolerance(measure=measure, most=most, confidence=confidence)


def _target(options: ModelOptions, output: Path | None) -> tuple[Path | None, Path]:
    """Where the model is on disk (None where it is on a hub), and where to write.

    Raises:
        SetBlockError: it can't be written to.
    """
    from setblock.model.bundled import BUNDLED_MODEL

    source = Path(options.path or BUNDLED_MODEL)
    if output is not None:
        if output.exists() and (not output.is_dir() or any(output.iterdir())):
            raise SetBlockError(f"{output} exists already: --output must be a new folder")
        if not source.is_dir() and (options.prepack or options.quantization):
            option = "--prepack" if options.prepack else "--quantization"
            raise ParameterError(f"{options.path} is on a hub, and {option} leaves nothing to save: download it first")
        return (source if source.is_dir() else None), output
    if source.resolve() == BUNDLED_MODEL.resolve():
        raise ParameterError("the bundled model is read-only: give --output FOLDER for a copy, or --dry-run")
    if not source.is_dir():
        raise ParameterError(f"{options.path} is on a hub: give --output FOLDER for a copy, or --dry-run")
    return source, source


def _read(path: Path, model: "SBDModel") -> "Sweep":
    from setblock.evaluation.fingerprint import model_fingerprint
    from setblock.evaluation.sweep_file import read_sweep

    found = read_sweep(path)
    theirs, ours = found.run["model"]["fingerprint"], model_fingerprint(model)
    if theirs != ours:
        raise SetBlockError(f"{path} is of another model: its fingerprint is {theirs}, this model's {ours}")
    return found


def _decode(
    model: "SBDModel",
    task: Any,
    split: str,
    seed: int,
    grids: Any,
    shared: DecodingSettings,
    *,
    limit: int,
    batch_size: int,
    tolerance: "Tolerance",
) -> "Sweep":
    from itertools import islice

    from setblock.cli.sweep_view import sweep_progress
    from setblock.evaluation.calibration import check_enough
    from setblock.evaluation.grid import points_of
    from setblock.evaluation.sweep_run import run_sweep

    points = points_of(model, grids)
    count = sum(1 for _ in islice(task.examples(split, seed=seed), max(limit, 1)))
    check_enough(count, tolerance)  # before anything is decoded
    with sweep_progress(len(points) + 1, count) as on_progress:
        return run_sweep(
            model,
            task,
            points,
            split=split,
            seed=seed,
            shared=shared,
            limit=limit,
            batch_size=batch_size,
            on_progress=on_progress,
        )


def _write(
    model: "SBDModel",
    calibration: "Calibration",
    domain: str,
    sweep: "Sweep",
    source: Path | None,
    target: Path,
) -> Path:
    """Write what was found into the checkpoint: the fastest setting that passed, and exact mode."""
    from setblock.evaluation.calibration import records_of
    from setblock.model.checkpoint_facts import copy_checkpoint, write_facts

    assert model.facts is not None
    if source is None:
        model.save(target)
    elif source != target:
        copy_checkpoint(source, target)
    others = tuple(each for each in model.facts.calibrations if each.domain != domain)
    records = records_of(calibration, domain=domain, fingerprint=sweep.run["model"]["fingerprint"])
    write_facts(target, replace(model.facts, calibrations=(*others, *records)))
    return target


def calibration_json(calibration: "Calibration", *, domain: str, written: Path | None) -> dict[str, Any]:
    """The JSON object of a calibration."""
    chosen = calibration.chosen
    return {
        "domain": domain,
        "tolerance": {
            "measure": calibration.tolerance.measure,
            "most": calibration.tolerance.most,
            "confidence": calibration.tolerance.confidence,
        },
        "chosen": None if chosen is None else chosen.point.to_json(),
        "tested": chosen is not None and not calibration.by_construction,
        "nfe_speedup": calibration.nfe_speedup,
        "exact_nfe_speedup": calibration.exact_speedup,
        "num_ordering": calibration.num_ordering,
        "num_testing": calibration.num_testing,
        "tests": [
            {
                "point": test.row.point.to_json(),
                "loss": test.loss,
                "p_value": test.p_value,
                "passed": test.passed,
                "nfe_speedup": test.nfe_speedup,
            }
            for test in calibration.tests
        ],
        "written": None if written is None else str(written),
    }


def _show(calibration: "Calibration", *, domain: str, written: Path | None, dry_run: bool) -> None:
    console = stdout_console()
    table = Table(
        title=f"{domain}: {calibration.tolerance.text}",
        caption=f"tested in this order on {calibration.num_testing:,} examples, up to the first that fails; the order was "
        f"found on {calibration.num_ordering:,} others",
        title_justify="left",
        caption_justify="left",
    )
    for column in ("setting", "loss", "p-value", "NFE speed-up", ""):
        table.add_column(column, justify="left" if column in ("setting", "") else "right")
    for test in calibration.tests:
        verdict = "passed" if test.passed else "failed"
        table.add_row(
            test.row.point.label, f"{test.loss:.2%}", f"{test.p_value:.4f}", f"{test.nfe_speedup:.2f}", verdict
        )
    console.print(table)
    if calibration.chosen is None:
        return
    how = "which loses nothing, whatever the examples" if calibration.by_construction else "which passed"
    if calibration.by_construction and not any(test.passed for test in calibration.tests):
        how += "; no other setting passed"
    console.print(
        f"chosen: {calibration.chosen.point.label}, {how}; {calibration.nfe_speedup or 1:.2f} times fewer passes than plain "
        "decoding",
        highlight=False,
        soft_wrap=True,
    )
    if written is not None:
        console.print(f"written to {written / 'config.json'}", highlight=False, soft_wrap=True)
    elif dry_run:
        console.print("nothing was written (--dry-run)", highlight=False)
