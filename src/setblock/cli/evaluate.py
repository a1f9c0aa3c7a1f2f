"""`setblock evaluate`: accuracy and passes over a task."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from setblock.cli import options
from setblock.cli.decoding_options import DecodingOptions
from setblock.cli.harness import TasksOptions, check_unused, evaluate_harness
from setblock.cli.messages import print_json, progress_bars
from setblock.cli.model import ModelOptions, load_model
from setblock.cli.sampler import sampler_json, sampler_text
from setblock.data.tasks import TASKS, task_named
from setblock.decoding.settings import DecodingSettings
from setblock.errors import SetBlockError
from setblock.evaluation.sandbox import Level

if TYPE_CHECKING:
    from setblock.evaluation.harness import Evaluation

DEFAULT_LIMIT, DEFAULT_BATCH_SIZE = 100, 32  # the harness's own; a test holds them together


@dataclass(frozen=True, kw_only=True)
class EvaluateOptions(DecodingOptions):
    """How the examples are answered."""

    seed: Annotated[
        int,
        typer.Option(
            "--seed",
            metavar="S",
            help="Other examples of the same split; of draws at a temperature above 0, too.",
            rich_help_panel=options.TASK,
        ),
    ] = 0


def evaluate(
    *,
    task: Annotated[
        str,
        typer.Option(
            "--task", metavar="NAME", help=f"What to answer: {', '.join(TASKS)}.", rich_help_panel=options.TASK
        ),
    ] = "word-problems",
    confinement: Annotated[
        Level,
        typer.Option(
            "--sandbox",
            help="Of tasks whose answers are run: how they are confined. confined, or files-readable to accept that "
            "they can read your files where the kernel has no Landlock.",
            rich_help_panel=options.TASK,
        ),
    ] = "confined",
    split: options.SplitOption = "test",
    limit: Annotated[
        int | None,
        typer.Option(
            "--limit",
            metavar="N",
            help=f"How many examples, at least 1. Default: {DEFAULT_LIMIT}; all that there are, of each of --tasks.",
            rich_help_panel=options.TASK,
        ),
    ] = None,
    batch_size: Annotated[
        int,
        typer.Option(
            "--batch-size",
            metavar="B",
            help="Examples decoded at once, at least 1. Changes no answer and no count.",
            rich_help_panel=options.TASK,
        ),
    ] = DEFAULT_BATCH_SIZE,
    continuous: Annotated[
        bool,
        typer.Option(
            "--continuous-batching",
            help="Let an answer that is finished make room for the next, as the server does, rather than wait for the longest "
            "of its batch. Changes no answer and no count.",
            rich_help_panel=options.TASK,
        ),
    ] = False,
    harness: TasksOptions,
    model: ModelOptions,
    decoding: EvaluateOptions,
    as_json: options.JsonOption = False,
) -> None:
    """Answer a task's examples: accuracy, and what it cost in forward passes beside plain decoding.

    --task names one of this package's own; --tasks those of lm-evaluation-harness, which then asks, reads and judges. The
    same examples are answered by ntp too. num_forwards counts every pass of every example, prefill included. The NFE
    speed-up is the sum of ntp's passes over the sum of the method's, without the prefill on either side and with the
    commits. The interval is Wilson's, at 95%.
    """
    settings = decoding.settings()
    if harness.tasks is not None:
        if continuous:
            raise SetBlockError("--continuous-batching goes with --task; --tasks are answered in batches")
        evaluate_harness(
            harness, model, settings, gamma=decoding.gamma, limit=limit, batch_size=batch_size, as_json=as_json
        )
        return
    check_unused(harness)
    chosen = task_named(task)
    limit = DEFAULT_LIMIT if limit is None else limit

    from setblock.evaluation.harness import evaluate as run
    from setblock.evaluation.judging import check_judge

    check_judge(chosen, level=confinement)
    loaded = load_model(model, blocks=settings.method != "ntp")
    settings = decoding.settings_for(loaded)
    with _progress(limit) as on_progress:
        evaluation = run(
            loaded,
            chosen,
            split=split,
            seed=decoding.seed,
            settings=settings,
            limit=limit,
            batch_size=batch_size,
            continuous=continuous,
            level=confinement,
            on_progress=on_progress,
        )
    if as_json:
        asked = {"split": split, "seed": decoding.seed, "settings": _changed(settings), **sampler_json(settings)}
        print_json({**evaluation_json(evaluation), **asked})
        return
    how = [f"{limit} {task}", f"{split} split", f"method {settings.method}"]
    if settings.method != "ntp":
        how += [sampler_text(settings), f"block size {evaluation.block_size}"]
    how += [f"{name} {value}" for name, value in _changed(settings).items()]
    typer.echo(f"{', '.join(how)}\n\n{_report(evaluation)}")


def _changed(settings: DecodingSettings) -> dict[str, Any]:
    """The settings that are not the default, but for those that have a place of their own in the report."""
    default, told = DecodingSettings(), {"method", "sampler", "block_size", "seed"}
    return {
        field.name: value
        for field in fields(settings)
        if field.name not in told and (value := getattr(settings, field.name)) != getattr(default, field.name)
    }


@contextmanager
def _progress(limit: int) -> Iterator[Callable[[str, int], None]]:
    with progress_bars() as progress:
        bars: dict[str, Any] = {}

        def on_progress(method: str, done: int) -> None:
            if method not in bars:
                bars[method] = progress.add_task(method, total=limit)
            progress.update(bars[method], completed=done)

        yield on_progress


def evaluation_json(evaluation: "Evaluation") -> dict[str, Any]:
    """The JSON object of an evaluation."""
    totals, ntp = evaluation.totals, evaluation.ntp
    return {
        "task": evaluation.task,
        "method": evaluation.method,
        "block_size": evaluation.block_size,
        "accuracy": evaluation.accuracy,
        "accuracy_interval": evaluation.accuracy_interval and list(evaluation.accuracy_interval),
        "scores": totals.scores,
        "num_examples": evaluation.num_examples,
        "num_forwards": totals.forwards,
        "prefill_forwards": totals.prefill,
        "num_tokens": totals.tokens,
        "mean_forwards": evaluation.mean_forwards,
        "tokens_per_forward": evaluation.tokens_per_forward,
        "nfe_speedup": evaluation.nfe_speedup,
        "seconds": totals.seconds,
        "ntp_accuracy": evaluation.ntp_accuracy,
        "ntp_forwards": ntp.forwards,
        "ntp_tokens": ntp.tokens,
        "ntp_seconds": ntp.seconds,
        "identical_to_ntp": evaluation.identical_to_ntp,
        "token_agreement": evaluation.token_agreement,
        **({} if evaluation.nll is None else {"nll": asdict(evaluation.nll)}),
    }


def _nats(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def _report(evaluation: "Evaluation") -> str:
    rows = []
    if evaluation.accuracy is not None and evaluation.accuracy_interval is not None:
        low, high = evaluation.accuracy_interval
        rows.append(("accuracy", f"{evaluation.accuracy:.1%} (95% interval {low:.1%} to {high:.1%})"))
    rows += [(name, f"{score:.1%}") for name, score in evaluation.totals.scores.items()]
    if evaluation.method != "ntp":
        rows += [("accuracy of ntp", f"{evaluation.ntp_accuracy:.1%}")] if evaluation.ntp_accuracy is not None else []
        rows += [
            ("identical to ntp", f"{evaluation.identical_to_ntp:.1%} of the answers"),
            ("tokens as in ntp", f"{evaluation.token_agreement:.1%}, place by place"),
        ]
    if evaluation.nll is not None:
        told = [("of ntp's", evaluation.nll.ntp), ("of the real text", evaluation.nll.reference)]
        values = ", ".join(f"{_nats(value)} {whose}" for whose, value in told)
        rows.append(("nats a token", f"{_nats(evaluation.nll.answers)} of the answers, {values}"))
    rows += [
        ("forwards", f"{evaluation.mean_forwards:.1f} a problem, prefill included"),
        ("tokens per forward", f"{evaluation.tokens_per_forward:.2f}, prefill included"),
    ]
    if evaluation.nfe_speedup is not None:
        rows.append(("NFE speed-up", f"{evaluation.nfe_speedup:.2f}x over ntp, prefill left out on both sides"))
    rows.append(("seconds", f"{evaluation.totals.seconds:.1f} (ntp: {evaluation.ntp.seconds:.1f})"))
    return "\n".join(f"{name:<20}{value}" for name, value in rows)
