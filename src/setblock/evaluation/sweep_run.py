"""Running a sweep: decode each operating point that a file has not yet, and plain decoding once for all of them."""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import fields
from itertools import islice
from pathlib import Path
from typing import Any

from setblock.data.tasks import Example, Task
from setblock.decoding.operating_point import NTP, OperatingPoint
from setblock.decoding.settings import DecodingSettings
from setblock.errors import ParameterError, SetBlockError
from setblock.evaluation.answers import answers_to, prompts_of
from setblock.evaluation.fingerprint import code_identity, model_fingerprint, provenance, task_identity
from setblock.evaluation.judging import check_judge, verdicts_on
from setblock.evaluation.outcomes import outcomes_of
from setblock.evaluation.sweep import Sweep, SweepRow
from setblock.evaluation.sweep_file import check_same, open_sweep
from setblock.model.sbd_model import SBDModel

# What a point says itself; everything else of the settings is shared by a whole sweep.
_OF_POINTS = {"method", "sampler", "block_size", "adaptive_blocks", "draft_passes"}
Progress = Callable[[OperatingPoint, int], None]


def run_sweep(
    model: SBDModel,
    task: Task[Any],
    points: Iterable[OperatingPoint],
    *,
    split: str = "test",
    seed: int = 0,
    path: Path | None = None,
    shared: DecodingSettings | None = None,
    limit: int,
    batch_size: int,
    on_progress: Progress | None = None,
) -> Sweep:
    """Decode the first `limit` examples of a task at every point, and by NTP.

    Args:
        points: in this order; one that the file has is not decoded again.
        split, seed: which examples; see `Task.examples`.
        path: a file that rows are added to as they are done, and that an interrupted sweep goes on from; None for none.
        shared: the settings that no point says, such as `max_new_tokens`.
        limit, batch_size: as in `setblock.evaluation.harness.evaluate`.
        on_progress: called after each batch with the point and the number of examples answered so far.

    Returns:
        NTP and the asked points, in their order, also where the file has others besides.

    Raises:
        SetBlockError: an argument is out of its range, the file holds another sweep, or the model can't do what is asked.
    """
    for name, value in (("limit", limit), ("batch_size", batch_size)):
        if value < 1:
            raise ParameterError(f"{name} must be at least 1, not {value}")
    check_judge(task, level="confined")
    shared = shared or DecodingSettings()
    wanted = [point for point in dict.fromkeys(points) if point != NTP]
    examples = list(islice(task.examples(split, seed=seed), limit))
    if not examples:
        raise SetBlockError(f"task {task.name} has no examples")
    run: Mapping[str, Any] = run_record(model, task_identity(task, examples, split=split, seed=seed), shared)
    with nullcontext() if path is None else open_sweep(path) as file:
        rows: dict[OperatingPoint, SweepRow] = {}
        if file is not None and file.sweep is not None and path is not None:
            check_same(path, file.sweep.run, run)
            run = file.sweep.run
            rows = {row.point: row for row in (file.sweep.ntp, *file.sweep.rows)}
        for point in (NTP, *wanted):
            if point in rows:
                continue
            ntp = rows.get(NTP)
            rows[point] = _decoded(
                model, task, examples, point, shared, ntp, batch_size=batch_size, on_progress=on_progress
            )
            if file is not None:
                file.add(rows[point], run=run, ntp=rows[NTP])
    return Sweep(run, rows[NTP], [rows[point] for point in wanted])


def run_record(model: SBDModel, task: Mapping[str, Any], shared: DecodingSettings) -> dict[str, Any]:
    """What all rows of a sweep have in common."""
    default = DecodingSettings()
    changed = {
        field.name: getattr(shared, field.name)
        for field in fields(shared)
        if field.name not in _OF_POINTS and getattr(shared, field.name) != getattr(default, field.name)
    }
    return {
        "model": {
            "name": model.model.name_or_path,
            "fingerprint": model_fingerprint(model),
            **({"prepacked": True} if model.prepacked else {}),  # adds up in another order, and takes other times
        },
        "task": task,
        "settings": json.loads(json.dumps(changed, default=str)),  # as it comes back from a file
        "code": code_identity(),
    }


def _decoded(
    model: SBDModel,
    task: Task[Any],
    examples: Sequence[Example],
    point: OperatingPoint,
    shared: DecodingSettings,
    ntp: SweepRow | None,
    *,
    batch_size: int,
    on_progress: Progress | None,
) -> SweepRow:
    """A row; `ntp` is None where the row is NTP's own."""

    def done(count: int) -> None:
        if on_progress is not None:
            on_progress(point, count)

    started = time.perf_counter()
    prompts, raw = prompts_of(task, examples, model)
    answers = answers_to(prompts, model, point.settings(shared), batch_size=batch_size, raw=raw, on_progress=done)
    seconds = time.perf_counter() - started
    own = [each.token_ids for each in answers]
    reference = own if ntp is None else ntp.token_ids
    assert reference is not None
    outcomes = outcomes_of(verdicts_on(task, examples, [each.text for each in answers]), answers, reference)
    return SweepRow(point, outcomes, seconds, provenance(), own if ntp is None else None)
