"""Answer a task's examples at one or many operating points, and by plain decoding (`evaluate` and `sweep`).

Knows which points are still to be decoded. Knows nothing of any task in particular, nor of how answers are counted.
"""

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from setblock.data.tasks import Task
from setblock.decoding.settings.operating_point import NTP, at_point, point_of, with_calibration
from setblock.decoding.settings.table import POINT, DecodingSettings
from setblock.evaluation.exam import exam_of
from setblock.evaluation.result import Result
from setblock.evaluation.sweeps.fingerprint import code_identity, model_fingerprint
from setblock.evaluation.sweeps.result_file import check_same, open_results
from setblock.model.protocol.language_model import LanguageModel
from setblock.model.sbd_model import SBDModel

DEFAULT_LIMIT = 100
DEFAULT_BATCH_SIZE = 32
# What a point says itself; everything else of the settings is shared by a whole sweep.
_OF_POINTS = {"method", *POINT}
Progress = Callable[[DecodingSettings, int], None]


def evaluate(
    model: LanguageModel,
    task: Task[Any],
    *,
    split: str = "test",
    seed: int = 0,
    settings: DecodingSettings | None = None,
    limit: int = DEFAULT_LIMIT,
    batch_size: int = DEFAULT_BATCH_SIZE,
    allow_code_execution: bool = False,
    on_progress: Progress | None = None,
) -> Result:
    """Evaluate a model on the first `limit` examples of a task, by NTP and, if it is another, by the method of `settings`.

    Args:
        split: the split that the examples come from; see `Task.examples`.
        seed: the seed that the examples are generated from.
        settings: how to decode. NTP uses the same settings, except for the method.
        limit: how many examples, at least 1.
        batch_size: how many examples are decoded at once, at least 1. It changes the time, never an answer or a count.
        allow_code_execution: whether a task such as HumanEval may run the programs that the model writes; see
            `setblock.evaluation.judging.programs`.
        on_progress: called with the operating point and the number of examples answered so far.

    Raises:
        SetBlockError: an argument is out of its range, or the model does not support the request.
    """
    exam = exam_of(
        model,
        task,
        split=split,
        seed=seed,
        limit=limit,
        batch_size=batch_size,
        allow_code_execution=allow_code_execution,
    )
    settings = with_calibration(model, settings)
    point = point_of(model, settings)
    run = {"task": exam.identity, "settings": changed_settings(settings)}
    points = {point: settings, NTP: replace(settings, method="ntp")}  # that first: what it refuses is reported at once
    answers = {at: exam.decode(how, partial(on_progress or _silent, at)) for at, how in points.items()}
    ntp = exam.result(run, NTP, answers[NTP], ntp=None)
    return ntp if point == NTP else exam.result(run, point, answers[point], ntp=ntp)


def sweep(
    model: SBDModel,
    task: Task[Any],
    points: Iterable[DecodingSettings],
    *,
    split: str = "test",
    seed: int = 0,
    path: Path | None = None,
    shared: DecodingSettings | None = None,
    limit: int = DEFAULT_LIMIT,
    batch_size: int = DEFAULT_BATCH_SIZE,
    allow_code_execution: bool = False,
    on_progress: Progress | None = None,
) -> list[Result]:
    """Evaluate a model at every point as `evaluate` does. NTP is decoded once for all of them.

    Args:
        points: the operating points, in this order. A point that the file already has is not decoded again.
        path: a file that each result is added to. An interrupted sweep resumes from it. None keeps no file.
        shared: the settings that all points share, such as `max_new_tokens`.

    Returns:
        NTP and the requested points in their order, even if the file has others too.

    Raises:
        SetBlockError: an argument is out of its range, the file holds another sweep, or the model does not support the request.
    """
    exam = exam_of(
        model,
        task,
        split=split,
        seed=seed,
        limit=limit,
        batch_size=batch_size,
        allow_code_execution=allow_code_execution,
    )
    shared = shared or DecodingSettings()
    run: Mapping[str, Any] = {
        "model": {
            "name": model.model.name_or_path,
            "fingerprint": model_fingerprint(model),
            **({"prepacked": True} if model.prepacked else {}),  # adds up in another order, and takes other times
        },
        "task": exam.identity,
        "settings": changed_settings(shared),
        "code": code_identity(),
    }
    wanted = [NTP, *(point for point in dict.fromkeys(points) if point != NTP)]
    with nullcontext() if path is None else open_results(path) as file:
        results: dict[DecodingSettings, Result] = {}
        if file is not None and path is not None and file.results:
            check_same(path, file.results[0].run, run)
            results = {result.point: result for result in file.results}
        for point in wanted:
            if point in results:
                continue
            settings = replace(at_point(point, shared), drafts="fixed")  # so that passes do not depend on the machine
            answers = exam.decode(settings, partial(on_progress or _silent, point))
            results[point] = exam.result(run, point, answers, ntp=results.get(NTP))
            if file is not None:
                file.add(results[point])
    return [results[point] for point in wanted]


def changed_settings(settings: DecodingSettings) -> dict[str, Any]:
    """Return the settings that belong to no operating point and differ from the default, as JSON holds them."""
    changed = {name: value for name, value in settings.changed().items() if name not in _OF_POINTS}
    whole: dict[str, Any] = json.loads(json.dumps(changed, default=str))
    return whole


def _silent(point: DecodingSettings, done: int) -> None:
    pass
