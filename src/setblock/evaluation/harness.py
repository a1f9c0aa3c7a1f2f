"""`evaluate`: a model's answers to a task, right or wrong, and the passes they took.

Knows tasks and counts. Knows nothing of any task in particular, nor of how a block is decoded.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

from setblock.data.tasks import Example, Task
from setblock.decoding.calibrated import default_settings, with_calibration
from setblock.decoding.defaults import block_size_for
from setblock.decoding.generation import Generation
from setblock.decoding.settings import DecodingSettings
from setblock.decoding.text import encode_prompt
from setblock.errors import ParameterError, SetBlockError
from setblock.evaluation.answers import answers_to, prompts_of
from setblock.evaluation.comparison import nfe_speedup
from setblock.evaluation.interval import wilson_interval
from setblock.evaluation.judging import check_judge, verdicts_on
from setblock.evaluation.nll import mean_nll
from setblock.evaluation.sandbox import Level
from setblock.model.sbd_model import SBDModel

DEFAULT_LIMIT = 100
DEFAULT_BATCH_SIZE = 32


@dataclass(frozen=True)
class Totals:
    """Figures of one method over all examples.

    Attributes:
        correct: answers that were right; None where nobody can say.
        scores: means of the task's further scores.
        tokens: tokens generated, end-of-text included.
        prefill: prefill passes.
        decoding: all other passes, commits included.
        seconds: wall-clock of the whole run.

    Passes are those of each request on its own: a batch's pass counts once for every row that takes part in it.
    """

    correct: int | None
    scores: dict[str, float]
    tokens: int
    prefill: int
    decoding: int
    seconds: float

    @property
    def forwards(self) -> int:
        """All passes."""
        return self.prefill + self.decoding


@dataclass(frozen=True)
class Likelihoods:
    """How likely the model itself finds texts, read as plain next-token decoding reads them: nats a token, a mean over all
    tokens. Least is what decoding would seek; where answers have more than NTP's, decoding in blocks wrote what does not fit.

    Attributes:
        answers: of the method's answers; None where they have no tokens.
        ntp: of NTP's answers; likewise.
        reference: of the examples' own answers: how well the model knows such text at all; likewise.
    """

    answers: float | None
    ntp: float | None
    reference: float | None


@dataclass(frozen=True)
class Evaluation:
    """What `evaluate` found.

    Attributes:
        task: the task's name.
        method: the method that was evaluated.
        block_size: its block size; 1 for `ntp`.
        num_examples: how many examples.
        totals: the figures of the method.
        ntp: the figures of plain next-token decoding of the same examples by the same model.
        identical_to_ntp: share of answers that are NTP's, token for token.
        token_agreement: share of places, over all answers, at which the token is NTP's. What one answer has past the end of the
            other does not agree; nor, mostly, does what comes after a word left out.
        nll: where nothing is judged, how likely the model finds texts.
    """

    task: str
    method: str
    block_size: int
    num_examples: int
    totals: Totals
    ntp: Totals
    identical_to_ntp: float
    token_agreement: float
    nll: Likelihoods | None = None

    @property
    def accuracy(self) -> float | None:
        """Share of right answers; None where nobody can say."""
        return None if self.totals.correct is None else self.totals.correct / self.num_examples

    @property
    def accuracy_interval(self) -> tuple[float, float] | None:
        """Its 95% Wilson interval."""
        return None if self.totals.correct is None else wilson_interval(self.totals.correct, self.num_examples)

    @property
    def ntp_accuracy(self) -> float | None:
        """Share of right answers of NTP."""
        return None if self.ntp.correct is None else self.ntp.correct / self.num_examples

    @property
    def mean_forwards(self) -> float:
        """Passes per example, the prefill counted."""
        return self.totals.forwards / self.num_examples

    @property
    def tokens_per_forward(self) -> float:
        """Tokens per pass, the prefill counted."""
        return self.totals.tokens / self.totals.forwards

    @property
    def nfe_speedup(self) -> float | None:
        """Ratio of the sums of passes, NTP's over the method's; see `setblock.evaluation.comparison.nfe_speedup`."""
        return nfe_speedup(ntp_passes=self.ntp.decoding, passes=self.totals.decoding)


def evaluate(
    model: SBDModel,
    task: Task[Any],
    *,
    split: str = "test",
    seed: int = 0,
    settings: DecodingSettings | None = None,
    limit: int = DEFAULT_LIMIT,
    batch_size: int = DEFAULT_BATCH_SIZE,
    continuous: bool = False,
    level: Level = "confined",
    on_progress: Callable[[str, int], None] = lambda method, done: None,
) -> Evaluation:
    """Evaluate a model on the first `limit` examples of a task, by NTP and, if it is another, by the method of `settings`.

    Args:
        split, seed: which examples; see `Task.examples`.
        settings: how to decode. NTP uses the same, but for the method.
        limit: how many examples, at least 1.
        batch_size: how many are decoded at once, at least 1. Changes the time, never an answer or a count.
        continuous: whether an answer that is finished makes room for the next, as in a server; likewise.
        level: how programs are confined, of a task that runs code; see `setblock.evaluation.sandbox`.
        on_progress: called now and then with the method and the number of examples that it has answered so far.

    Raises:
        SetBlockError: an argument is out of its range, or the model can't do what is asked.
    """
    for name, value in (("limit", limit), ("batch_size", batch_size)):
        if value < 1:
            raise ParameterError(f"{name} must be at least 1, not {value}")
    settings = with_calibration(model, settings or default_settings(model))
    check_judge(task, level=level)
    examples = list(islice(task.examples(split, seed=seed), limit))
    if not examples:
        raise SetBlockError(f"task {task.name} has no examples here")
    prompts, raw = prompts_of(task, examples, model)
    runs = {}
    for method in dict.fromkeys(
        (settings.method, "ntp")
    ):  # the one asked for first: whatever it refuses is told at once
        started = time.perf_counter()
        answers = answers_to(
            prompts,
            model,
            replace(settings, method=method),
            batch_size=batch_size,
            raw=raw,
            continuous=continuous,
            on_progress=partial(on_progress, method),
        )
        runs[method] = answers, _totals(task, examples, answers, seconds=time.perf_counter() - started, level=level)

    (answers, totals), (ntp_answers, ntp_totals) = runs[settings.method], runs["ntp"]
    same = sum(mine.token_ids == theirs.token_ids for mine, theirs in zip(answers, ntp_answers, strict=True))
    return Evaluation(
        task=task.name,
        method=settings.method,
        block_size=block_size_for(model, settings),
        num_examples=len(examples),
        totals=totals,
        ntp=ntp_totals,
        identical_to_ntp=same / len(examples),
        token_agreement=_agreement(answers, ntp_answers),
        nll=_likelihoods(model, task, examples, answers, ntp_answers),
    )


def _agreement(answers: Sequence[Generation], ntp_answers: Sequence[Generation]) -> float:
    pairs = [(mine.token_ids, theirs.token_ids) for mine, theirs in zip(answers, ntp_answers, strict=True)]
    agreeing = sum(a == b for mine, theirs in pairs for a, b in zip(mine, theirs, strict=False))
    return agreeing / sum(max(len(mine), len(theirs)) for mine, theirs in pairs)


def _likelihoods(
    model: SBDModel,
    task: Task[Any],
    examples: Sequence[Example],
    answers: Sequence[Generation],
    ntp_answers: Sequence[Generation],
) -> Likelihoods | None:
    if task.judge is not None:
        return None
    texts, raw = prompts_of(task, examples, model)
    prompts = [encode_prompt(model.tokenizer, text, raw=raw) for text in texts]
    written = [(example.completion if raw else example.answer) or "" for example in examples]
    references = [
        model.tokenizer(text, add_special_tokens=False, split_special_tokens=True).input_ids for text in written
    ]
    return Likelihoods(
        answers=mean_nll(model, zip(prompts, (answer.token_ids for answer in answers), strict=True)),
        ntp=mean_nll(model, zip(prompts, (answer.token_ids for answer in ntp_answers), strict=True)),
        reference=mean_nll(model, zip(prompts, references, strict=True)),
    )


def _totals(
    task: Task[Any], examples: Sequence[Example], answers: Sequence[Generation], *, seconds: float, level: Level
) -> Totals:
    verdicts = verdicts_on(task, examples, [answer.text for answer in answers], level=level)
    names = verdicts[0].scores if verdicts else ()
    return Totals(
        correct=None if verdicts is None else sum(each.right for each in verdicts),
        scores={name: sum(each.scores[name] for each in verdicts or ()) / len(examples) for name in names},
        tokens=sum(answer.num_tokens for answer in answers),
        prefill=sum(answer.passes.prefill for answer in answers),
        decoding=sum(answer.passes.decoding for answer in answers),
        seconds=seconds,
    )
