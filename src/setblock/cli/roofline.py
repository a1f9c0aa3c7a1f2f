"""`setblock roofline`: what blocks can gain on a machine, predicted from two figures of it, and a plan for one load."""

from pathlib import Path
from typing import Annotated

import typer

from setblock.cli import options
from setblock.cli.messages import print_json, print_message, stdout_console
from setblock.cli.roofline_plan import plan_json, print_plan
from setblock.cli.roofline_subject import (
    SubjectOptions,
    prediction_for,
    read_subject,
    this_device,
    this_machine,
    torch_dtype,
)
from setblock.cli.roofline_view import (
    operations_json,
    passes_json,
    print_caveat,
    print_passes,
    print_paying,
    print_subject,
    print_tables,
    subject_json,
    tables_json,
)
from setblock.errors import ParameterError
from setblock.roofline.machine import THIS_MACHINE
from setblock.roofline.plan import plan as make_plan
from setblock.roofline.plan import read_evaluations
from setblock.roofline.precision import Precision
from setblock.roofline.prediction import Prediction, last_paying_batch
from setblock.roofline.printed import PrintedPrediction
from setblock.roofline.tables import (
    BLOCK_SIZE,
    KV_LENGTH,
    NFE_SPEEDUPS,
    PRINTED_SLOWDOWN_BATCHES,
    PRINTED_SPEEDUP_BATCHES,
    tables,
)

LOAD, PLAN = "Load", "Plan"
MEASURED_MODEL = "smollm2-135m"  # what a laptop can hold


def roofline(
    *,
    subject: SubjectOptions,
    kv_length: Annotated[
        int, typer.Option("--kv-length", metavar="L", min=1, help="Cached positions.", rich_help_panel=LOAD)
    ] = KV_LENGTH,
    concurrency: Annotated[
        int,
        typer.Option(
            "--concurrency", metavar="N", min=1, help="Requests at once, in --plan and --measure.", rich_help_panel=LOAD
        ),
    ] = 1,
    block_size: Annotated[
        int,
        typer.Option("--block-size", metavar="K", min=2, help="k of the speed-ups.", rich_help_panel=LOAD),
    ] = BLOCK_SIZE,
    plan: Annotated[
        bool, typer.Option("--plan", help="Advise on k and gamma for this load.", rich_help_panel=PLAN)
    ] = False,
    nfe: Annotated[
        float | None,
        typer.Option(
            "--nfe", metavar="X", help="NFE speed-up of your model at --block-size, as measured.", rich_help_panel=PLAN
        ),
    ] = None,
    evaluations: Annotated[
        Path | None,
        typer.Option(
            "--evaluations",
            metavar="FILE",
            help="Lines of `setblock evaluate --json` of your model, one for each gamma.",
            rich_help_panel=PLAN,
        ),
    ] = None,
    tolerance: Annotated[
        float,
        typer.Option(
            "--tolerance",
            metavar="A",
            help="Accuracy that may be given up, in 0..1; 0.01 is a percentage point.",
            rich_help_panel=PLAN,
        ),
    ] = 0.01,
    as_printed: Annotated[
        bool,
        typer.Option(
            "--as-printed",
            help="The paper's tables 3 and 4 as printed, slips included.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Time passes of random weights on this machine beside their prediction.",
            rich_help_panel=options.OUTPUT,
        ),
    ] = False,
    repeats: Annotated[
        int, typer.Option("--repeats", metavar="N", min=1, help="Of --measure.", rich_help_panel=options.OUTPUT)
    ] = 20,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", metavar="FILE", help="Draw it, as PNG, SVG or PDF.", rich_help_panel=options.OUTPUT),
    ] = None,
    as_json: options.JsonOption = False,
) -> None:
    """Predict what blocks gain: slowdown of block passes, speed-up in seconds, and the batch where it ends.

    Each operation of a pass takes the longer of its arithmetic at the machine's peak and its bytes at the memory's bandwidth.
    Nothing is measured unless --measure or --hardware this-machine asks for it, and no weights are read.
    """
    if as_printed + plan + measure > 1:
        raise ParameterError("--as-printed, --plan and --measure exclude each other")
    if not plan and (nfe is not None or evaluations is not None):
        raise ParameterError("--nfe and --evaluations are for --plan")
    if as_printed:
        if subject != SubjectOptions() or plot is not None:
            raise ParameterError("--as-printed is the paper's model on the paper's hardware, and has no plot")
        _print_printed(kv_length=kv_length, block_size=block_size, as_json=as_json)
        return
    if measure:
        _measure(subject, batch=concurrency, kv_length=kv_length, repeats=repeats, as_json=as_json)
        return
    prediction = prediction_for(subject)
    if plan:
        made = make_plan(
            prediction,
            concurrency=concurrency,
            kv_length=kv_length,
            block_size=block_size,
            nfe_speedup=nfe,
            evaluations=[] if evaluations is None else read_evaluations(evaluations),
            tolerance=tolerance,
        )
        if as_json:
            print_json(
                subject_json(prediction) | plan_json(made, prediction, concurrency=concurrency, kv_length=kv_length)
            )
        else:
            console = stdout_console()
            print_subject(console, prediction)
            print_plan(console, made, prediction, concurrency=concurrency, kv_length=kv_length)
            print_caveat(console)
    else:
        _print_prediction(prediction, kv_length=kv_length, block_size=block_size, as_json=as_json)
    if plot is not None:
        from setblock.roofline.plots import draw

        title = f"Predicted: {prediction.shape.name}, {prediction.precision.activations}, {prediction.hardware.name}"
        draw(prediction, plot, title=title, kv_length=kv_length, block_size=block_size, nfe_speedups=NFE_SPEEDUPS)
        print_message(f"wrote {plot}")


def _print_printed(*, kv_length: int, block_size: int, as_json: bool) -> None:
    made = tables(
        PrintedPrediction(),
        kv_length=kv_length,
        block_size=block_size,
        slowdown_batches=PRINTED_SLOWDOWN_BATCHES,
        speedup_batches=PRINTED_SPEEDUP_BATCHES,
    )
    if as_json:
        where = {"mode": "as printed", "kv_length": kv_length, "block_size": block_size}
        print_json(where | tables_json(made))
        return
    console = stdout_console()
    print_tables(console, made, kv_length=kv_length, block_size=block_size)
    print_caveat(console, "As the paper prints them; its shapes are wrong (docs/roofline.md).")


def _print_prediction(prediction: Prediction, *, kv_length: int, block_size: int, as_json: bool) -> None:
    made = tables(prediction, kv_length=kv_length, block_size=block_size)
    at = {"kv_length": kv_length, "block_size": block_size}
    paying = {nfe: last_paying_batch(prediction, nfe, **at) for nfe in NFE_SPEEDUPS if nfe <= block_size}
    if as_json:
        print_json(
            {"mode": "corrected", **at}
            | tables_json(made)
            | {"last_paying_batch": {str(nfe): batch for nfe, batch in paying.items()}}
            | {"batch_in_memory": prediction.batch_in_memory(kv_length)}
            | {"operations": operations_json(prediction, batch=1, **at)}
            | subject_json(prediction)
        )
        return
    console = stdout_console()
    print_subject(console, prediction)
    print_tables(console, made, **at)
    print_paying(console, paying, fits=prediction.batch_in_memory(kv_length), **at)
    print_caveat(console)


def _measure(subject: SubjectOptions, *, batch: int, kv_length: int, repeats: int, as_json: bool) -> None:
    if subject.hardware not in (None, THIS_MACHINE) or (subject.bandwidth, subject.peak) != (None, None):
        raise ParameterError("--measure is of this machine: leave --hardware, --bandwidth and --peak out")
    if subject.weights is not None or subject.kv is not None:
        raise ParameterError("--measure has one type for all: leave --weights and --kv out")
    read = read_subject(subject.model or MEASURED_MODEL)
    dtype = subject.dtype or read.default_dtype
    torch_dtype(dtype)
    from setblock.cli.roofline_measure import measure_passes

    prediction = Prediction(shape=read.shape, hardware=this_machine(dtype), precision=Precision.of(dtype))
    passes = measure_passes(read, prediction, batch=batch, kv_length=kv_length, repeats=repeats, device=this_device())
    if as_json:
        where = {"mode": "measured", "batch": batch, "kv_length": kv_length, "repeats": repeats}
        print_json(where | {"passes": passes_json(passes)} | subject_json(prediction))
        return
    console = stdout_console()
    print_subject(console, prediction)
    print_passes(console, passes, batch=batch, kv_length=kv_length)
