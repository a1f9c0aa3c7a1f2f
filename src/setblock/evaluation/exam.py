"""Examine a model: ask it a task's examples, judge its answers and count them.

Knows examples, answers and what becomes of them. Knows nothing of which operating points are worth asking at.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from setblock.data.tasks import Example, Task
from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.text import Prompt
from setblock.decoding.generate import generate_batch
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockError, check_at_least
from setblock.evaluation.judging.judges import check_judge, verdicts_on
from setblock.evaluation.result import Result, outcomes_of
from setblock.evaluation.sweeps.fingerprint import provenance, task_identity
from setblock.model.protocol.language_model import LanguageModel


@dataclass(frozen=True)
class TimedAnswers:
    """Hold a model's answers, in the order of the examples, and the seconds that they took together."""

    generations: Sequence[Generation]
    seconds: float


@dataclass(frozen=True)
class Exam:
    """Hold what a model is asked; made by `exam_of`.

    Attributes:
        identity: of task and examples; see `task_identity`.
        prompts: how the examples are asked.
        raw: whether prompts are gone on with as they stand, without a chat template.
        batch_size: as in `setblock.evaluation.run.evaluate`.
    """

    model: LanguageModel
    task: Task[Any]
    identity: Mapping[str, Any]
    examples: Sequence[Example]
    prompts: Sequence[Prompt]
    raw: bool
    batch_size: int

    def decode(
        self, settings: DecodingSettings, on_progress: Callable[[int], None] = lambda done: None
    ) -> TimedAnswers:
        """Answer all examples."""
        started = time.perf_counter()
        generations = answers_to(
            self.prompts,
            self.model,
            settings,
            batch_size=self.batch_size,
            raw=self.raw,
            on_progress=on_progress,
        )
        return TimedAnswers(generations, time.perf_counter() - started)

    def result(
        self,
        run: Mapping[str, Any],
        point: DecodingSettings,
        answers: TimedAnswers,
        *,
        ntp: Result | None,
    ) -> Result:
        """Judge and count; `ntp` is NTP's result, None where these are its answers."""
        generations = answers.generations
        own = [each.token_ids for each in generations]
        reference = own if ntp is None else ntp.token_ids
        assert reference is not None
        verdicts = verdicts_on(self.task, self.examples, [each.text for each in generations])
        return Result(
            run=run,
            point=point,
            outcomes=outcomes_of(generations, ntp=reference, verdicts=verdicts),
            seconds=answers.seconds,
            ntp=ntp,
            made=provenance(),
            token_ids=own if ntp is None else None,
        )


def exam_of(
    model: LanguageModel,
    task: Task[Any],
    *,
    split: str,
    limit: int,
    batch_size: int,
    seed: int = 0,
    allow_code_execution: bool = False,
) -> Exam:
    """Return the first `limit` examples of a task's split, for a model.

    Raises:
        SetBlockError: an argument is out of its range, the task has no examples, or its answers can't be judged here.
    """
    check_at_least(1, limit=limit, batch_size=batch_size)
    check_judge(task, allow_code_execution=allow_code_execution)
    examples = list(islice(task.examples(split, seed=seed), limit))
    if not examples:
        raise SetBlockError(f"task {task.name} has no examples here, in split {split}")
    prompts, raw = prompts_of(task, examples, model)
    identity = task_identity(task, examples, split=split, seed=seed)
    return Exam(model, task, identity, examples, prompts, raw, batch_size)


def prompts_of(task: Task[Any], examples: Sequence[Example], model: LanguageModel) -> tuple[list[Prompt], bool]:
    """Return how a model is asked, and whether the prompt is continued directly, without a chat template."""
    raw = task.raw or model.tokenizer.chat_template is None
    return [example.asked(raw=raw) for example in examples], raw


def answers_to(
    prompts: Sequence[Prompt],
    model: LanguageModel,
    settings: DecodingSettings,
    *,
    batch_size: int,
    raw: bool,
    on_progress: Callable[[int], None] = lambda done: None,
) -> list[Generation]:
    """Return the model's answers, in the order of the prompts. Prompts of like length share a batch.

    Args:
        batch_size: how many are decoded at once. It changes no answer.
        raw: whether prompts are continued as they stand, without a chat template.
        on_progress: called after each batch with the number of prompts answered so far.

    Raises:
        SetBlockError: the model can't do what is asked.
    """
    order = sorted(range(len(prompts)), key=lambda index: _length(prompts[index]))
    answers: dict[int, Generation] = {}
    for first in range(0, len(order), batch_size):
        batch = order[first : first + batch_size]
        together = generate_batch(model, [prompts[index] for index in batch], settings=settings, raw=raw)
        answers.update(zip(batch, together, strict=True))
        on_progress(len(answers))
    return [answers[index] for index in range(len(prompts))]


def _length(prompt: Prompt) -> int:
    if isinstance(prompt, str):
        return len(prompt)
    return sum(len(each["content"]) if isinstance(each, Mapping) else 1 for each in prompt)
