"""Measure accuracy and passes over a task (`setblock evaluate`)."""

from typing import TYPE_CHECKING

import typer

from setblock.cli.messages import print_json, progress
from setblock.cli.options.decoding_options import DecodingOptions, sampler_text
from setblock.cli.options.groups import JSON, TASK, option, option_group
from setblock.cli.options.model import RuntimeOptions, load_language_model, warn_of_bundled
from setblock.cli.options.tasks import BATCH_SIZE, ExamplesOptions
from setblock.decoding.settings.table import DecodingSettings
from setblock.evaluation.records import DEFAULT_JUDGE

if TYPE_CHECKING:
    from setblock.evaluation.result import Result


@option_group(TASK)
class EvaluateOptions(DecodingOptions):
    """Hold how the examples are answered."""

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

    task, asked = examples.chosen()
    asked |= {"seed": decoding.seed, "batch_size": batch_size}
    if examples.source is not None:
        warn_of_bundled(model)
    loaded = load_language_model(model, blocks=settings.method == "sbd")
    settings = decoding.settings_for(loaded)
    with progress() as tell:
        result = run(
            loaded,
            task,
            **asked,
            settings=settings,
            on_progress=lambda point, done: tell(point.method, done, asked["limit"]),
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
