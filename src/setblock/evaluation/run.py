"""Evaluation runs: answer a task's examples at one or many operating points and by plain decoding (`evaluate` and `sweep`),
or one prompt by two methods (`compare`).

`setblock.evaluation.judging` judges the answers, and `setblock.evaluation.result` computes the figures.
"""

import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, TypedDict, Unpack

from setblock.data.tasks import Example, Task
from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.prompt import Prompt
from setblock.decoding.settings.resolve import NTP, at_point, with_calibration
from setblock.decoding.settings.table import POINT, DecodingSettings
from setblock.engine.generate import generate, generate_batch, stream
from setblock.errors import ParameterError, SetBlockError, check_at_least
from setblock.evaluation.judging import check_judge, verdicts_on
from setblock.evaluation.operating_point import point_of
from setblock.evaluation.references import reference_scores
from setblock.evaluation.result import Result, nfe_speedup, outcomes_of
from setblock.evaluation.sweeps.fingerprint import code_identity, model_fingerprint, provenance, task_identity
from setblock.evaluation.sweeps.result_file import changes, open_results
from setblock.model.protocol.runtime import LanguageModel
from setblock.model.sbd_model import SBDModel

Progress = Callable[[DecodingSettings, int], None]


class EvaluationOptions(TypedDict, total=False):
    """The keyword arguments that `evaluate` and `sweep` share; `evaluate` describes them."""

    split: str
    seed: int
    limit: int
    batch_size: int
    allow_code_execution: bool


def evaluate(
    model: LanguageModel,
    task: Task[Any],
    *,
    settings: DecodingSettings | None = None,
    on_progress: Progress = lambda point, done: None,
    on_references: Callable[[int], None] = lambda done: None,
    **requested: Unpack[EvaluationOptions],
) -> Result:
    """Evaluate a model on the first examples of a task, by NTP and by the method of `settings`, if that is another. Raise
    `SetBlockError` if an argument is out of its range, or the model does not support the request.

    Args:
        settings: how to decode. NTP uses the same settings, except for the method.
        on_progress: called with the operating point and the number of examples answered so far.
        on_references: called with the number of references scored so far; only for records of a file, see `reference_scores`.
        requested: which examples, and how they are answered together. `split` (`test`): the split that they come from; see
            `Task.examples`. `seed` (0): the seed that they are generated from. `limit` (100): how many, at least 1.
            `batch_size` (32): how many are decoded at once, at least 1; it changes the time, never an answer or a count.
            `allow_code_execution` (False): whether a task's judge may run the programs that the model writes.
    """
    exam = Exam(model, task, **requested)
    settings = with_calibration(model, settings)
    point = point_of(model, settings)
    run = {"task": exam.identity, "settings": changed_settings(settings)}
    points = {
        point: settings,
        NTP: replace(settings, method="ntp"),
    }  # the method first: its errors are reported at once
    answers = {at: exam.decode(how, partial(on_progress, at)) for at, how in points.items()}
    ntp = exam.result(run, NTP, answers[NTP], ntp=None)
    result = ntp if point == NTP else exam.result(run, point, answers[point], ntp=ntp)
    return replace(result, references=reference_scores(model, exam.examples, raw=exam.raw, on_progress=on_references))


def sweep(
    model: SBDModel,
    task: Task[Any],
    points: Iterable[DecodingSettings],
    *,
    path: Path | None = None,
    shared: DecodingSettings | None = None,
    on_progress: Progress = lambda point, done: None,
    **requested: Unpack[EvaluationOptions],
) -> list[Result]:
    """Evaluate a model at every point as `evaluate` does, which describes `on_progress` and `requested`. NTP is decoded once.
    Return the results of NTP and of the requested points in their order, even if the file has others, too. Raise
    `SetBlockError` if an argument is out of its range, the file has another sweep, or the model does not support the request.

    Args:
        points: the operating points, in this order. A point that the file already has is not decoded again.
        path: the file to which each result is appended. An interrupted sweep resumes from it. None writes no file.
        shared: the settings that all points share, such as `max_new_tokens`.
    """
    exam = Exam(model, task, **requested)
    shared = shared or DecodingSettings()
    run: Mapping[str, Any] = {
        "model": {
            "name": model.model.name_or_path,
            "fingerprint": model_fingerprint(model),
            **({"prepacked": True} if model.prepacked else {}),  # sums in another order, and takes other times
        },
        "task": exam.identity,
        "settings": changed_settings(shared),
        "code": code_identity(),
    }
    wanted = [NTP, *(point for point in dict.fromkeys(points) if point != NTP)]
    with open_results(path) as (earlier, keep):
        for key, before, now in changes(earlier[0].run, run) if earlier else ():
            raise SetBlockError(
                f"{path} holds another sweep: its {key} is {before}, and now {now}; write to another file"
            )
        results = {result.point: result for result in earlier}
        for point in [each for each in wanted if each not in results]:
            settings = replace(at_point(point, shared), drafts="fixed")  # so that passes do not depend on the machine
            answers = exam.decode(settings, partial(on_progress, point))
            results[point] = exam.result(run, point, answers, ntp=results.get(NTP))
            keep(results[point])
    return [results[point] for point in wanted]


def changed_settings(settings: DecodingSettings) -> dict[str, Any]:
    """Return the settings that are not part of an operating point and differ from the default, for JSON."""
    changed = {name: value for name, value in settings.changed().items() if name not in ("method", *POINT)}
    whole: dict[str, Any] = json.loads(json.dumps(changed, default=str))
    return whole


@dataclass(frozen=True)
class TimedAnswers:
    """A model's answers, in the order of the examples, and the seconds that they took together."""

    generations: Sequence[Generation]
    seconds: float


def answers_to(
    model: LanguageModel,
    prompts: Sequence[Prompt],
    settings: Sequence[DecodingSettings],
    *,
    batch_size: int,
    raw: bool = False,
    on_progress: Callable[[int], None] = lambda done: None,
) -> TimedAnswers:
    """Answer prompts, each by its `settings`. Prompts of similar length share a batch, the longest first. `on_progress` is
    called with the number of prompts answered so far."""
    started = time.perf_counter()
    order = sorted(range(len(prompts)), key=lambda index: len(str(prompts[index])), reverse=True)
    answers: dict[int, Generation] = {}
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        requested, how = [prompts[index] for index in batch], [settings[index] for index in batch]
        answers.update(zip(batch, generate_batch(model, requested, settings=how, raw=raw), strict=True))
        on_progress(len(answers))
    return TimedAnswers([answers[index] for index in range(len(order))], time.perf_counter() - started)


class Exam:
    """The first examples of a task's split, and how they are put to a model."""

    def __init__(
        self,
        model: LanguageModel,
        task: Task[Any],
        *,
        split: str = "test",
        seed: int = 0,
        limit: int = 100,
        batch_size: int = 32,
        allow_code_execution: bool = False,
    ) -> None:
        """Take at most `limit` examples, or raise `SetBlockError` if an argument is out of its range, the task has no examples,
        or its answers can't be judged here."""
        check_at_least(1, limit=limit, batch_size=batch_size)
        check_judge(task, allow_code_execution=allow_code_execution)
        self.examples = list(islice(task.examples(split, seed=seed), limit))
        if not self.examples:
            raise SetBlockError(f"task {task.name} has no examples here, in split {split}")
        self.model, self.task, self.batch_size = model, task, batch_size
        self.identity = task_identity(task, self.examples, split=split, seed=seed)
        self.prompts, self.raw = prompts_of(task, self.examples, model)

    def decode(
        self, settings: DecodingSettings, on_progress: Callable[[int], None] = lambda done: None
    ) -> TimedAnswers:
        """Answer all examples, as `answers_to` does."""
        same, size = [settings] * len(self.prompts), self.batch_size
        return answers_to(self.model, self.prompts, same, raw=self.raw, batch_size=size, on_progress=on_progress)

    def result(
        self, run: Mapping[str, Any], point: DecodingSettings, answers: TimedAnswers, *, ntp: Result | None
    ) -> Result:
        """Judge the answers and return their result. `ntp` is NTP's result; None if these are NTP's answers."""
        generations = answers.generations
        verdicts = verdicts_on(self.task, self.examples, [each.text for each in generations])
        return Result(
            run=run,
            point=point,
            outcomes=outcomes_of(generations, ntp=None if ntp is None else ntp.token_ids, verdicts=verdicts),
            seconds=answers.seconds,
            ntp=ntp,
            made=provenance(self.model.device),
            token_ids=[each.token_ids for each in generations] if ntp is None else None,
        )


def prompts_of(task: Task[Any], examples: Sequence[Example], model: LanguageModel) -> tuple[list[Prompt], bool]:
    """Return the prompts, and whether they are continued directly, without a chat template."""
    raw = task.raw or model.tokenizer.chat_template is None
    return [example.requested(raw=raw) for example in examples], raw


@dataclass(frozen=True)
class Comparison:
    """The same request, decoded by two methods."""

    ntp: Generation  # one token a pass
    blocks: Generation  # in blocks, by method `sbd` or `exact`

    @property
    def identical(self) -> bool:
        """Whether both methods wrote the same tokens."""
        return self.ntp.token_ids == self.blocks.token_ids

    @property
    def nfe_speedup(self) -> float | None:
        """See `setblock.evaluation.result.nfe_speedup`."""
        return nfe_speedup(ntp_passes=self.ntp.passes.decoding, passes=self.blocks.passes.decoding)

    @property
    def wall_clock_speedup(self) -> float:
        """The seconds of NTP divided by the seconds in blocks, the prefill included on both sides."""
        return self.ntp.seconds / self.blocks.seconds


def compare(
    model: LanguageModel,
    prompt: Prompt,
    *,
    settings: DecodingSettings | None = None,
    raw: bool = False,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> Comparison:
    """Decode a prompt by NTP and by the method of `settings`, after a few untimed passes of each. The other settings apply to
    both. Other arguments and errors are those of `setblock.stream`; also raise `SetBlockError` if the method is `ntp`."""
    blocks = with_calibration(model, settings)
    if blocks.method == "ntp":
        raise ParameterError(f"method must be sbd or exact, to be compared with ntp, not {blocks.method}")
    ntp = replace(blocks, method="ntp")
    given: dict[str, Any] = {"raw": raw, "chat_template_kwargs": chat_template_kwargs}
    for each in (blocks, ntp):  # blocks first: their errors are reported at once
        for _ in islice(stream(model, prompt, settings=each, **given), 8):  # not timed
            pass
    return Comparison(
        ntp=generate(model, prompt, settings=ntp, **given), blocks=generate(model, prompt, settings=blocks, **given)
    )
