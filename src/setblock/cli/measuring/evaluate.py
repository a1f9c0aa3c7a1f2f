"""Answer a task's examples and compare with plain decoding: at one setting (`setblock evaluate`), or at every setting of a grid
(`setblock sweep`), whose fastest that keeps a tolerance can be written into the checkpoint (`setblock calibrate`)."""

from collections.abc import Iterable
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich import box
from rich.table import Table

from setblock.cli.messages import print_json, progress, stdout_console
from setblock.cli.options.decoding_options import DecodingOptions, sampler_text
from setblock.cli.options.groups import JSON, OUTPUT, TASK, option, option_group, optional
from setblock.cli.options.model import ModelOptions, RuntimeOptions, load_language_model, load_model, warn_of_bundled
from setblock.cli.options.tasks import BATCH_SIZE, ExamplesOptions, GridOptions, TaskOptions
from setblock.decoding.samplers.named import PLUG_INS, name_of
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import ParameterError, SetBlockError
from setblock.evaluation.operating_point import label_of
from setblock.evaluation.records import DEFAULT_JUDGE
from setblock.model.loading.named import BUNDLED_MODEL

if TYPE_CHECKING:
    from setblock.evaluation.calibration import Calibration
    from setblock.evaluation.result import Result


@option_group(TASK)
class EvaluateOptions(DecodingOptions):
    """The options of how the examples are answered."""

    seed: int = option(0, "Seed that chooses the examples of the split, and the tokens at a temperature above 0.")


def evaluate(
    *,
    examples: ExamplesOptions,
    batch_size: int = option(32, BATCH_SIZE, panel=TASK),  # the library's own; a test holds them together
    model: RuntimeOptions,
    decoding: EvaluateOptions,
    as_json: bool = JSON,
) -> None:
    """Answer the examples of a task or of a file, and report accuracy, forward passes and seconds.

    Plain decoding (ntp) answers the same examples, and the report compares the two. num_forwards counts every pass of every
    example, prefill included. The NFE speed-up is the sum of ntp's passes divided by the sum of the method's, with commits and
    without the prefill on either side. The interval is Wilson's, at 95%.
    """
    model.check()
    settings = decoding.settings()
    from setblock.evaluation.run import evaluate as run

    task, requested = examples.chosen()
    requested |= {"seed": decoding.seed, "batch_size": batch_size}
    if examples.source is not None:
        warn_of_bundled(model)
    loaded = load_language_model(model, blocks=settings.method == "sbd")
    settings = decoding.settings_for(loaded)
    with progress() as report:
        result = run(
            loaded,
            task,
            **requested,
            settings=settings,
            on_progress=lambda point, done: report(point.method, done, requested["limit"]),
            on_references=lambda done: report("references", done, requested["limit"]),
        )
    if as_json:
        others = 0 if loaded.draft_text is None else len(loaded.draft_text.token_ids)
        how = {"model": model.path or "bundled", "batch_size": batch_size, "draft_text_tokens": others}
        how |= {"drafts": settings.drafts} if settings.method == "exact" else {}
        print_json({**how, **result.figures()})
    else:
        typer.echo(f"{_how(result, settings, examples)}\n\n{_report(result, batch_size)}")


def _how(result: "Result", settings: DecodingSettings, examples: ExamplesOptions) -> str:
    task = result.run["task"]
    how = [f"{result.num_examples} {task['name']}", f"{task['options']['split']} split"]
    if examples.source is not None:
        judge = [] if result.accuracy is None else [f"judge {examples.judge or DEFAULT_JUDGE}"]
        how = [f"{result.num_examples} records of {examples.source.name}", *judge]
    how += [f"method {settings.method}"]
    if settings.method != "ntp":
        how += [sampler_text(settings), f"block size {result.point.block_size}"]
    how += [f"drafts {settings.drafts}"] if settings.method == "exact" else []
    how += [f"{name} {value}" for name, value in result.run["settings"].items() if name not in ("seed", "drafts")]
    return ", ".join(how)


def _report(result: "Result", batch_size: int) -> str:
    rows = []
    if result.accuracy is not None and result.accuracy_interval is not None:
        low, high = result.accuracy_interval
        rows.append(("accuracy", f"{result.accuracy:.1%} (95% interval {low:.1%} to {high:.1%})"))
    rows += [(name, f"{score:.1%}") for name, score in result.scores.items()]
    if (of := result.references) is not None:
        rows.append(
            ("reference loss", f"{of.loss:.3f} nats a token, over the {of.tokens:,} tokens of the reference answers")
        )
        rows.append(("reference tokens", f"{of.accuracy:.1%} are the most likely after those before them"))
    if result.ntp is not None:
        rows += [] if result.ntp.accuracy is None else [("accuracy of ntp", f"{result.ntp.accuracy:.1%}")]
        rows.append(("tokens as in ntp", f"{result.token_agreement:.1%} of an answer's, on average"))
    figures, at_once = result.figures(), min(batch_size, result.num_examples)
    rows += [
        ("identical to ntp", f"{figures['identical_to_ntp']:.1%} of the answers"),
        ("forwards", f"{figures['mean_forwards']:.1f} an answer, prefill included"),
        ("tokens per forward", f"{figures['tokens_per_forward']:.2f}, prefill included"),
    ]
    if figures["nfe_speedup"] is not None:
        rows.append(("NFE speed-up", f"{figures['nfe_speedup']:.2f}x over ntp, prefill left out on both sides"))
    rows.append(("seconds", f"{figures['seconds']:.1f} (ntp: {figures['ntp_seconds']:.1f}), {at_once} at once"))
    width = max(len(name) for name, _ in rows) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


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
        chosen, requested = task.chosen()
        grids = grid.grids()
        results = task.swept(load_model(model, blocks=True), chosen, requested, grids, out=output)
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


@option_group("Calibration")
class CalibrationOptions:
    """The options of a calibration."""

    tolerance: str = option(
        "accuracy=0.5",
        "accuracy=0.5: lose at most half a point of accuracy against plain decoding. tokens=1: on average, at most 1% "
        "of an answer's tokens differ from plain decoding's.",
        metavar="MEASURE=PERCENT",
    )
    confidence: float = option(0.95, "Probability that the chosen setting keeps the tolerance, from 0.5 to 0.999.")
    domain: str | None = optional("Name of this kind of request. Default: the task's or file's.", metavar="NAME")
    results: Path | None = optional("Decode nothing: use the outcomes of a finished `setblock sweep` of this model.")


def calibrate(
    *,
    requested: CalibrationOptions,
    task: TaskOptions,
    model: ModelOptions,
    grid: GridOptions,
    output: Path | None = optional(
        "Write to a copy of the checkpoint in this new folder. The model stays unchanged.",
        panel=OUTPUT,
        metavar="FOLDER",
    ),
    dry_run: bool = option(False, "Show the result, and write nothing.", panel=OUTPUT),
    as_json: bool = JSON,
) -> None:
    """Find the fastest setting that keeps a tolerance, and write it into the checkpoint.

    The command tests settings from careful to careless, on examples that had no part in finding this order. If future
    requests are like the examples, the chosen setting keeps the tolerance with at least the stated confidence. Exact mode
    loses nothing. It is chosen if no setting that passes is faster. The result goes into config.json of the checkpoint, and
    every command then uses it unless an option sets something else.
    """
    model.check()
    from setblock.evaluation import calibration
    from setblock.evaluation.sweeps.fingerprint import model_fingerprint
    from setblock.evaluation.sweeps.result_file import read_results
    from setblock.model.checkpoint import copy_checkpoint, write_sbd_config

    # 1. The options, and their check
    wanted = calibration.tolerance_of(requested.tolerance, confidence=requested.confidence)
    if requested.results is not None and (task.source or grid != GridOptions()):
        raise ParameterError("--results decodes nothing: it takes the place of --input and the options of the grid")
    chosen, which = task.chosen(split="validation", limit=1000)
    if chosen.judge is None and wanted.measure == "accuracy" and requested.results is None:
        raise ParameterError(
            f"{task.source or chosen.name} has no right answers: give a tolerance of tokens, such as --tolerance tokens=1"
        )
    grids = grid.grids()
    if not dry_run:
        _check_samplers(name for each in grids for name in each.get("sampler", ()))
    loaded = load_model(model, blocks=True)
    if not dry_run:
        _check_writable(model, output)

    # 2. The outcomes
    if requested.results is None:
        found = islice(chosen.examples(which["split"], seed=task.seed), max(which["limit"], 1))
        wanted.check_enough(sum(1 for _ in found))
        results = task.swept(loaded, chosen, which, grids)
    else:
        results = read_results(requested.results)
        if (theirs := results[0].run["model"]["fingerprint"]) != (ours := model_fingerprint(loaded)):
            raise SetBlockError(
                f"{requested.results} is of another model: its fingerprint is {theirs}, this model's {ours}; sweep this model"
            )

    if not dry_run:
        _check_samplers(name_of(each.point.sampler) for each in results if each.point.sampler is not None)

    # 3. The choice, written next to those of other domains
    made = calibration.calibrate(results, wanted, seed=task.seed)
    run, source = results[0].run, Path(model.source)
    domain = requested.domain or str(run["task"]["name"])
    folder = None if dry_run or made.chosen is None else output or source
    if folder is not None:
        if not source.is_dir():
            loaded.save(folder)
        elif source != folder:
            copy_checkpoint(source, folder)
        assert loaded.sbd_config is not None
        records = made.records(domain=domain, fingerprint=run["model"]["fingerprint"])
        others = [each for each in loaded.sbd_config.calibrations if each.domain != domain]
        write_sbd_config(folder, replace(loaded.sbd_config, calibrations=(*others, *records)))
    if as_json:
        print_json({"domain": domain, **made.to_json(), "written": folder and str(folder)})
    else:
        _show(made, domain=domain)
        if made.chosen is not None:
            message = f"written to {folder / 'config.json'}" if folder else "nothing was written (--dry-run)"
            stdout_console().print(message, soft_wrap=True)
    if made.chosen is None:
        raise SetBlockError("no setting passed: sweep --method exact, which keeps any tolerance, or allow a larger one")


def _check_samplers(names: Iterable[str]) -> None:
    """Raise for a sampler that is a class in a user's file: other commands would not find its name in the checkpoint."""
    for name in names:
        if ".py:" in name:
            raise ParameterError(
                f"sampler {name} can't be written into a checkpoint, which names samplers that are installed: make it a "
                f"plug-in (an entry point of the group {PLUG_INS}), or give --dry-run"
            )


def _check_writable(model: ModelOptions, copy: Path | None) -> None:
    """Raise, before hours of decoding, if calibrations can't be written to the model's own folder or to a copy."""
    source = Path(model.source)
    if copy is not None:
        if copy.exists() and (not copy.is_dir() or any(copy.iterdir())):
            raise SetBlockError(f"{copy} exists already: --output must be a new folder")
        if not source.is_dir() and (model.prepack or model.quantization):
            raise ParameterError(f"{source} is no folder, and --prepack and --quantization leave nothing to save")
    elif source.resolve() == BUNDLED_MODEL.resolve():
        raise ParameterError("the bundled model is read-only: give --output FOLDER for a copy, or --dry-run")
    elif not source.is_dir():
        raise ParameterError(f"{model.path} is no folder: give --output FOLDER for a copy, or --dry-run")


def _show(calibration: "Calibration", *, domain: str) -> None:
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
        figures = (f"{test.loss:.2%}", f"{test.p_value:.4f}", f"{test.nfe_speedup:.2f}")
        table.add_row(label_of(test.point), *figures, "passed" if test.passed else "failed")
    console, chosen = stdout_console(), calibration.chosen
    console.print(table)
    if chosen is not None:
        how = "which passed" if chosen is calibration.passed else "which loses nothing, whatever the examples"
        how += "" if calibration.passed else "; no other setting passed"
        summary = f"{label_of(chosen.point)}, {how}; {chosen.nfe_speedup:.2f} times fewer passes than plain decoding"
        console.print(f"chosen: {summary}", soft_wrap=True)
