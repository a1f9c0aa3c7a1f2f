"""Find the fastest setting that keeps a tolerance, and write it into the checkpoint (`setblock calibrate`)."""

from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from rich.table import Table

from setblock.cli.messages import print_json, stdout_console
from setblock.cli.options.grid_options import GridOptions
from setblock.cli.options.groups import OUTPUT, JsonOption, option, option_group
from setblock.cli.options.model import ModelOptions, load_model
from setblock.cli.options.tasks import TaskOptions, limit_option, split_option
from setblock.data.tasks.task import Split
from setblock.decoding.settings.operating_point import label_of
from setblock.errors import ParameterError, SetBlockError

if TYPE_CHECKING:
    from setblock.evaluation.calibration import Calibration
    from setblock.evaluation.result import Result
    from setblock.model.protocol.facts import CalibratedSetting
    from setblock.model.sbd_model import SBDModel

CALIBRATION = "Calibration"


@option_group()
class CalibrateOptions(TaskOptions):
    """Hold what a calibration asks, by default."""

    usual_limit: ClassVar[int] = 1000
    usual_split: ClassVar[Split] = "validation"

    split: Split | None = split_option("validation")
    limit: int | None = limit_option(1000)


def calibrate(
    *,
    tolerance: str = option(
        "accuracy=0.5",
        "accuracy=0.5: lose at most half a point of accuracy against plain decoding. tokens=1: on average, at most 1% "
        "of an answer's tokens differ from plain decoding's.",
        panel=CALIBRATION,
        metavar="MEASURE=PERCENT",
    ),
    confidence: float = option(
        0.95, "Probability that the chosen setting keeps the tolerance, at least 0.5 and below 1.", panel=CALIBRATION
    ),
    domain: str | None = option(
        None,
        "Name of the kind of request that the examples represent. A model has one calibration for each domain. "
        "Default: the task, or the name of the file.",
        panel=CALIBRATION,
        metavar="NAME",
    ),
    results_file: Path | None = option(
        None,
        "Use the outcomes of a finished `setblock sweep` of this model, and decode nothing.",
        "--results",
        panel=CALIBRATION,
    ),
    task: CalibrateOptions,
    model: ModelOptions,
    grid: GridOptions,
    output: Path | None = option(
        None,
        "Write to a copy of the checkpoint in this new folder. The model stays unchanged.",
        panel=OUTPUT,
        metavar="FOLDER",
    ),
    dry_run: bool = option(False, "Show the result, and write nothing.", panel=OUTPUT),
    as_json: JsonOption = False,
) -> None:
    """Find the fastest setting that keeps a tolerance, and write it into the checkpoint.

    The command tests settings from careful to careless, on examples that had no part in finding this order. If future
    requests are like the examples, the chosen setting keeps the tolerance with at least the stated confidence. Exact mode
    loses nothing. It is chosen if no setting that passes is faster. The result goes into config.json of the checkpoint, and
    every command then uses it unless an option sets something else.
    """
    model.check()
    from setblock.evaluation.calibration import calibrate as find
    from setblock.evaluation.calibration import tolerance_of
    from setblock.evaluation.sweeps.grid import points_of

    # 1. What is asked for, and whether it can be
    wanted = tolerance_of(tolerance, confidence=confidence)
    if results_file is not None and (task.source or grid != GridOptions()):
        raise ParameterError("--results decodes nothing: it takes the place of --input and the options of the grid")
    chosen, split, limit = task.chosen()
    if chosen.judge is None and wanted.measure == "accuracy" and results_file is None:
        raise ParameterError(
            f"{task.source or chosen.name} has no right answers: give a tolerance of tokens, such as --tolerance tokens=1"
        )
    grids = grid.grids()
    loaded = load_model(model, blocks=True)
    if not dry_run:
        _check_writable(model, output)  # before hours of decoding

    # 2. The outcomes
    if results_file is None:
        examples = chosen.examples(split, seed=task.seed)
        wanted.check_enough(sum(1 for _ in islice(examples, max(limit, 1))))
        results = task.swept(loaded, chosen, points_of(loaded, grids), split=split, limit=limit)
    else:
        results = _read(results_file, loaded)

    # 3. The choice
    calibration = find(results, wanted, seed=task.seed)
    run = results[0].run
    name = domain or str(run["task"]["name"])
    written = None
    if not dry_run and calibration.chosen is not None:
        written = output or Path(model.source)
        records = calibration.records(domain=name, fingerprint=run["model"]["fingerprint"])
        _write(loaded, Path(model.source), written, records)
    if as_json:
        print_json({"domain": name, **calibration.to_json(), "written": written and str(written)})
    else:
        _show(calibration, domain=name, written=written, dry_run=dry_run)
    if calibration.chosen is None:
        raise SetBlockError(
            "no setting passed; exact mode (--method exact) keeps any tolerance, but was not in the grid: sweep "
            "it, too, or allow a larger --tolerance"
        )


def _read(path: Path, model: "SBDModel") -> "list[Result]":
    from setblock.evaluation.sweeps.fingerprint import model_fingerprint
    from setblock.evaluation.sweeps.result_file import read_results

    results = read_results(path)
    theirs, ours = results[0].run["model"]["fingerprint"], model_fingerprint(model)
    if theirs != ours:
        raise SetBlockError(
            f"{path} is of another model: its fingerprint is {theirs}, this model's {ours}; sweep this model"
        )
    return results


def _check_writable(model: ModelOptions, copy: Path | None) -> None:
    """Refuse, before hours of decoding, a model whose calibrations can't be written: to its own folder, or to a copy.

    Raises:
        SetBlockError: they can't be.
    """
    from setblock.model.loading.named import BUNDLED_MODEL

    source = Path(model.source)
    if copy is not None:
        if copy.exists() and (not copy.is_dir() or any(copy.iterdir())):
            raise SetBlockError(f"{copy} exists already: --output must be a new folder")
        if not source.is_dir() and (model.prepack or model.quantization):
            raise ParameterError(f"{source} is no folder, and --prepack and --quantization leave nothing to save")
    elif source.resolve() == BUNDLED_MODEL.resolve():
        raise ParameterError("the bundled model is read-only: give --output FOLDER for a copy, or --dry-run")
    elif not source.is_dir():
        raise ParameterError(f"{model.path} is on a hub: give --output FOLDER for a copy, or --dry-run")


def _write(model: "SBDModel", source: Path, folder: Path, records: "list[CalibratedSetting]") -> None:
    """Write what was found for a domain into `config.json` of a folder. Other domains keep theirs."""
    from setblock.model.checkpoint import copy_checkpoint, write_facts

    if not source.is_dir():
        model.save(folder)
    elif source != folder:
        copy_checkpoint(source, folder)
    assert model.facts is not None
    others = [each for each in model.facts.calibrations if each.domain != records[0].domain]
    write_facts(folder, replace(model.facts, calibrations=(*others, *records)))


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
            label_of(test.point), f"{test.loss:.2%}", f"{test.p_value:.4f}", f"{test.nfe_speedup:.2f}", verdict
        )
    console.print(table)
    chosen = calibration.chosen
    if chosen is None:
        return
    how = "which passed" if chosen is calibration.passed else "which loses nothing, whatever the examples"
    how += "" if calibration.passed else "; no other setting passed"
    told = f"chosen: {label_of(chosen.point)}, {how}; {chosen.nfe_speedup:.2f} times fewer passes than plain decoding"
    console.print(told, highlight=False, soft_wrap=True)
    if written is not None:
        console.print(f"written to {written / 'config.json'}", highlight=False, soft_wrap=True)
    elif dry_run:
        console.print("nothing was written (--dry-run)", highlight=False)
