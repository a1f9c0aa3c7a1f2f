"""Evaluate tasks of the harness by one way to decode and by plain decoding, in one result of the harness's form.

Knows the harness's results. Knows nothing of tasks in particular, nor of the command line.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lm_eval import simple_evaluate
from lm_eval.api.group import Group
from lm_eval.api.task import Task
from lm_eval.loggers import EvaluationTracker

from setblock.decoding.settings import DecodingSettings
from setblock.errors import SetBlockError
from setblock.integrations.lm_eval.arguments import described
from setblock.integrations.lm_eval.figures import figures_of
from setblock.integrations.lm_eval.model import SetBlockLM
from setblock.model.sbd_model import SBDModel

FILTER = "setblock"
"""What replaces the harness's filter in the names of our figures: `tokens_per_forward,setblock`."""


@dataclass(frozen=True)
class HarnessOptions:
    """Hold the harness's options besides its tasks, which have its own command's meaning but not its names.

    Attributes:
        limit: how many examples of each task; None for all.
        num_fewshot: None for as many as the task says.
        apply_chat_template: whether prompts are messages of a chat.
        generation: generation arguments that go before the tasks' own.
        confirm_run_unsafe_code: whether code that the model wrote may be run.
        log_samples: whether the result holds every prompt and answer.
    """

    limit: int | None = None
    num_fewshot: int | None = None
    apply_chat_template: bool = False
    generation: Mapping[str, Any] = field(default_factory=dict)
    confirm_run_unsafe_code: bool = False
    log_samples: bool = False


def evaluate_tasks(
    model: SBDModel,
    tasks: Sequence[Task | Group],
    *,
    settings: DecodingSettings,
    options: HarnessOptions,
    batch_size: int,
    name: str,
    output_path: Path | None,
) -> tuple[dict[str, Any], Path | None]:
    """Evaluate a model on tasks by the method of `settings`; where answers are generated, by NTP as well.

    Args:
        tasks: from `load_tasks`.
        settings: how to decode. NTP uses the same, but for the method.
        batch_size: how many requests a pass takes, at least 1.
        name: of the model, in the result.
        output_path: where the harness is to write its result file; None for nowhere.

    Returns:
        The harness's results of the method, with the figures of `add_figures`; and the file they were written to.

    Raises:
        SetBlockError: the model can't do what is asked, or the result file can't be written.
    """
    tracker = EvaluationTracker(output_path=None if output_path is None else str(output_path))
    lm = SetBlockLM(model, settings=settings, batch_size=batch_size)
    results = _run(lm, tasks, options, name=name, tracker=tracker)
    if lm.answers:
        ntp_lm, ntp_results = lm, results
        if settings.method != "ntp":
            ntp_lm = SetBlockLM(model, settings=replace(settings, method="ntp"), batch_size=batch_size)
            ntp_results = _run(ntp_lm, tasks, options, name=name)
        add_figures(results, lm, ntp_results=ntp_results, ntp_lm=ntp_lm)
    return results, None if output_path is None else _written(tracker, results)


def add_figures(results: dict[str, Any], lm: SetBlockLM, *, ntp_results: Mapping[str, Any], ntp_lm: SetBlockLM) -> None:
    """Put what each task's answers cost next to its accuracy, and plain decoding's figures of the same examples.

    For each metric from 0 to 1 of which more is better: plain decoding's value (`ntp_...`).
    """
    for task, answers in lm.answers.items():
        of_task, of_ntp = results["results"][task], ntp_results["results"][task]
        better = results["higher_is_better"].get(task, {})
        plain = {
            f"ntp_{key}": of_ntp[key]
            for key, value in of_task.items()
            if better.get(key.partition(",")[0]) and isinstance(value, int | float) and 0 <= value <= 1
        }
        figures = figures_of(answers, ntp=ntp_lm.answers[task])
        of_task |= plain | {f"{key},{FILTER}": value for key, value in figures.items()}


def _run(
    lm: SetBlockLM,
    tasks: Sequence[Task | Group],
    options: HarnessOptions,
    *,
    name: str,
    tracker: EvaluationTracker | None = None,
) -> dict[str, Any]:
    if options.apply_chat_template:
        lm.chat_template(True)  # which says so if there is none, before anything is rendered
    results = simple_evaluate(
        model=lm,
        model_args={"pretrained": name, **described(lm.settings)},
        tasks=list(tasks),
        num_fewshot=options.num_fewshot,
        batch_size=lm.batch_size,
        device=str(lm.device),
        limit=options.limit,
        evaluation_tracker=tracker,
        apply_chat_template=options.apply_chat_template,
        fewshot_as_multiturn=options.apply_chat_template,
        gen_kwargs=dict(options.generation) or None,
        log_samples=options.log_samples,
        confirm_run_unsafe_code=options.confirm_run_unsafe_code,
    )
    assert results is not None
    return dict(results)


def _written(tracker: EvaluationTracker, results: dict[str, Any]) -> Path:
    """Write the harness's files, and see that they are there: the harness only logs it if they are not."""
    samples = results.pop("samples", None)
    tracker.save_results_aggregated(results=results, samples=samples)
    path, stamp = Path(tracker.output_path), getattr(tracker, "date_id", "")
    if path.suffix == ".json":
        path = path.with_name(f"{path.stem}_{stamp}.json")
    else:
        path = path / tracker.general_config_tracker.model_name_sanitized / f"results_{stamp}.json"
    if not path.is_file():
        raise SetBlockError(f"the result file can't be written: {path}")
    for task, of_task in (samples or {}).items():
        tracker.save_results_samples(task_name=task, samples=of_task)
    return path
