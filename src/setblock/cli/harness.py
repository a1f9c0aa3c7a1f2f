"""Run the language-model evaluation harness, and print its results in a few lines (`setblock evaluate --tasks`)."""

from collections.abc import Mapping, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import typer

from setblock.cli.messages import print_json, silence_bars, silence_data_sets
from setblock.cli.model import ModelOptions, load_model
from setblock.cli.options import option, option_group
from setblock.cli.sampler import sampler_json, sampler_text
from setblock.decoding.settings import DecodingSettings, offered_by
from setblock.errors import ParameterError, SetBlockError, check_at_least


@option_group("Tasks of lm-evaluation-harness")
class TasksOptions:
    """Hold what is asked of the harness. Without `tasks`, nothing."""

    tasks: str | None = option(
        None,
        "Tasks, groups, patterns or files of lm-evaluation-harness, separated by commas, such as gsm8k,mbpp. "
        "setblock_paper is the group of the paper's tasks (needs `pip install 'setblock\\[eval]'`).",
        metavar="NAMES",
    )
    num_fewshot: int | None = option(None, "Number of solved examples before each question. Default: the task's.")
    apply_chat_template: bool = option(False, "Use the model's chat template for the questions.")
    include_path: Path | None = option(None, "Folder with more task files.", metavar="DIR")
    output_path: Path | None = option(None, "Where the harness writes its result file.", metavar="DIR")
    log_samples: bool = option(False, "Also write every prompt and answer to --output-path.")
    confirm_run_unsafe_code: bool = option(
        False, "Allow tasks to run code that the model wrote, on this machine and with your permissions."
    )


def check_unused(options: TasksOptions) -> None:
    """Refuse options that nothing would come of.

    Raises:
        ParameterError: there is one.
    """
    for field in fields(options):
        value = getattr(options, field.name)
        if value is not None and value is not False:
            raise ParameterError(f"--{field.name.replace('_', '-')} needs --tasks")


def evaluate_harness(
    options: TasksOptions,
    model: ModelOptions,
    settings: DecodingSettings,
    *,
    gamma: float | None,
    limit: int | None,
    batch_size: int,
    as_json: bool,
) -> None:
    """Run the harness's tasks and print what came of them.

    Args:
        settings: how to decode.
        gamma: as it was typed, to go before a task's own.
    """
    silence_bars()
    try:
        import lm_eval  # noqa: F401
    except ImportError as error:
        raise SetBlockError("--tasks needs lm-evaluation-harness: pip install 'setblock[eval]'") from error
    from setblock.integrations.lm_eval.runs import HarnessOptions, evaluate_tasks
    from setblock.integrations.lm_eval.tasks import (
        load_tasks,
        matching_tasks,
        silence_harness,
        task_index,
    )

    # 1. What is asked for, before anything is loaded
    check_at_least(1, limit=limit, batch_size=batch_size)
    check_at_least(0, num_fewshot=options.num_fewshot)
    if options.log_samples and options.output_path is None:
        raise ParameterError("--log-samples needs --output-path, the folder to write them to")
    silence_harness()
    silence_data_sets()
    index = task_index(options.include_path)
    names = matching_tasks(index, [name.strip() for name in (options.tasks or "").split(",") if name.strip()])
    if not names:
        raise ParameterError("--tasks must name a task, such as gsm8k")
    _make_folder(options.output_path)

    # 2. The tasks' data, and the model
    tasks = load_tasks(index, names, confirmed=options.confirm_run_unsafe_code)
    loaded = load_model(model, blocks=settings.method == "sbd")

    # 3. The answers
    results, path = evaluate_tasks(
        loaded,
        tasks,
        settings=settings,
        options=HarnessOptions(
            limit=limit,
            num_fewshot=options.num_fewshot,
            apply_chat_template=options.apply_chat_template,
            generation=_generation(settings, gamma=gamma),
            confirm_run_unsafe_code=options.confirm_run_unsafe_code,
            log_samples=options.log_samples,
        ),
        batch_size=batch_size,
        name="word-problems" if model.path is None else model.path,
        output_path=options.output_path,
    )
    if as_json:
        told = {"tasks": results["results"], "groups": results.get("groups", {}), "result_file": path and str(path)}
        print_json({**told, "method": settings.method, **sampler_json(settings)})
        return
    how = settings.method if settings.method == "ntp" else f"{settings.method}, {sampler_text(settings)}"
    for task, of_task in results["results"].items():
        samples = results["n-samples"].get(task, {}).get("effective")
        typer.echo(f"{task}, {samples} examples, method {how}\n\n{report(of_task)}\n")
    if path is not None:
        typer.echo(f"written to {path}")


def report(of_task: dict[str, Any]) -> str:
    """Return the figures of a task, as the harness holds them, in lines."""
    rows = []
    for key, value in of_task.items():
        metric, _, of_filter = key.partition(",")
        if not of_filter or of_filter == "setblock" or metric.endswith("_stderr") or metric.startswith("ntp_"):
            continue
        words = [f"{value:.4f}" if isinstance(value, float) else str(value)]
        error = of_task.get(f"{metric}_stderr,{of_filter}")
        words += [f"± {error:.4f}"] if isinstance(error, float) else []
        if f"ntp_{key}" in of_task:
            words.append(f"(ntp: {of_task[f'ntp_{key}']:.4f})")
        rows.append((metric if of_filter == "none" else f"{metric}, {of_filter}", " ".join(words)))
    if "num_answers,setblock" in of_task:
        rows += cost_rows({key.removesuffix(",setblock"): value for key, value in of_task.items()})
    return in_lines(rows)


def cost_rows(figures: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return what answers and plain decoding's cost, each figure with its name."""
    rows = [
        ("identical to ntp", f"{figures['identical_to_ntp']:.1%} of the answers"),
        ("forwards", f"{figures['mean_forwards']:.1f} an answer, prefill included"),
        ("tokens per forward", f"{figures['tokens_per_forward']:.2f}, prefill included"),
    ]
    if figures["nfe_speedup"] is not None:
        rows.append(("NFE speed-up", f"{figures['nfe_speedup']:.2f}x over ntp, prefill left out on both sides"))
    return [*rows, ("seconds", f"{figures['seconds']:.1f} (ntp: {figures['ntp_seconds']:.1f})")]


def in_lines(rows: Sequence[tuple[str, str]]) -> str:
    """Write a line for each name and its value."""
    width = max((len(name) for name, _ in rows), default=0) + 2
    return "\n".join(f"{name:<{width}}{value}" for name, value in rows)


def _generation(settings: DecodingSettings, *, gamma: float | None) -> dict[str, Any]:
    """Return what was typed of a request's settings: it comes before what the tasks say, as the harness's --gen_kwargs
    does."""
    offered, changed = offered_by("harness"), settings.changed()
    given = {
        name: value
        for name, value in changed.items()
        if name in offered and offered[name].group != "point" and offered[name].type in (int, float)
    }
    given.pop("seed", None)
    if settings.temperature > 0:
        given |= {"do_sample": True, "temperature": settings.temperature}
    if settings.max_new_tokens is not None:
        given["max_gen_toks"] = settings.max_new_tokens
    if gamma is not None:
        given["gamma"] = gamma
    return given


def _make_folder(path: Path | None) -> None:
    if path is None:
        return
    folder = path.parent if path.suffix == ".json" else path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SetBlockError(f"--output-path {path} can't be made: {error.strerror}") from error
