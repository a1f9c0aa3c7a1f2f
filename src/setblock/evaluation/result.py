"""The result of an evaluation at one operating point, and the outcome of each example.

An evaluation is a `Result`; a sweep is a list of results over the same examples, plain decoding's first. All figures are
computed here, from the outcomes of the examples.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import NormalDist
from typing import Any

from pydantic import TypeAdapter, ValidationError

from setblock.data.tasks import Verdict
from setblock.decoding.answer.generation import Generation
from setblock.decoding.settings.resolve import NTP, point_from_json
from setblock.decoding.settings.table import HYPERPARAMETERS, DecodingSettings
from setblock.errors import SetBlockError, one_line
from setblock.evaluation.operating_point import point_to_json
from setblock.model.runners.teacher_forcing import TokenScores


@dataclass(frozen=True)
class Outcomes:
    """The outcomes of the examples: every field has one number for each example, in the order of the task."""

    tokens: tuple[int, ...]  # length of the answer, its end-of-text included
    # Forward passes by kind, as in `PassCounts`, counted for each request on its own: a batch's pass counts once for every
    # row that takes part in it
    prefill: tuple[int, ...]
    block: tuple[int, ...]
    commit: tuple[int, ...]
    # The number of positions at which the answer differs from NTP's; all positions past the end of the shorter one differ
    differing: tuple[int, ...]
    correct: tuple[int, ...] | None = None  # 1 for a right answer, else 0; None if answers aren't judged
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)  # further scores by name, in 0..1

    @property
    def decoding(self) -> tuple[int, ...]:
        """The passes of each example without the prefill, commits included."""
        return tuple(block + commit for block, commit in zip(self.block, self.commit, strict=True))

    @property
    def num_forwards(self) -> int:
        """The number of passes of all examples, prefills included."""
        return sum(self.prefill) + sum(self.decoding)

    @property
    def tokens_per_forward(self) -> float:
        """The mean number of tokens per pass; each example's prefill counts as one pass."""
        return sum(self.tokens) / (sum(min(each, 1) for each in self.prefill) + sum(self.decoding))

    def __len__(self) -> int:
        return len(self.tokens)


_OUTCOMES = TypeAdapter(Outcomes)


def outcomes_of(
    answers: Sequence[Generation],
    *,
    ntp: Sequence[Sequence[int]] | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> Outcomes:
    """Return the outcomes of at least one answer. `ntp`: the token ids of NTP's answers to the same examples; None if these are
    NTP's own. `verdicts`: the verdicts on the answers; None if they aren't judged."""
    own = [answer.token_ids for answer in answers]
    return Outcomes(
        tokens=tuple(map(len, own)),
        prefill=tuple(answer.passes.prefill for answer in answers),
        block=tuple(answer.passes.block for answer in answers),
        commit=tuple(answer.passes.commit for answer in answers),
        differing=tuple(differing(mine, theirs) for mine, theirs in zip(own, ntp or own, strict=True)),
        correct=None if verdicts is None else tuple(int(each.right) for each in verdicts),
        scores={name: tuple(each.scores[name] for each in verdicts) for name in verdicts[0].scores} if verdicts else {},
    )


def differing(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the number of positions at which two answers differ; all positions past the end of the shorter one do. It is at
    least their edit distance."""
    same = sum(a == b for a, b in zip(one, other, strict=False))
    return max(len(one), len(other)) - same


def nfe_speedup(*, ntp_passes: int, passes: int) -> float | None:
    """Return NTP's number of passes divided by the method's, prefills excluded and commits included on both sides. None if
    there was nothing to decode after the prefill."""
    return ntp_passes / passes if passes else None


@dataclass(frozen=True)
class Result:
    """The result at one operating point.

    Attributes:
        run: what all results of a sweep share: the task, the shared settings, and in a sweep the model and the code.
        seconds: the wall-clock time of all examples.
        ntp: plain decoding's result on the same examples. None if this is plain decoding's result.
        made: date, hardware and versions.
        token_ids: the answers of NTP, which the others are compared with; None for the others.
        references: plain decoding's scores on the reference answers (`setblock.evaluation.references`); None where these are
            not measured.
    """

    run: Mapping[str, Any]
    point: DecodingSettings
    outcomes: Outcomes
    seconds: float
    ntp: "Result | None" = field(default=None, repr=False)
    made: Mapping[str, Any] = field(default_factory=dict)
    token_ids: Sequence[Sequence[int]] | None = field(default=None, repr=False)
    references: TokenScores | None = None

    @property
    def plain(self) -> "Result":
        """Plain decoding's result: `ntp`, or this one."""
        return self.ntp or self

    @property
    def num_examples(self) -> int:
        """The number of examples."""
        return len(self.outcomes)

    @property
    def accuracy(self) -> float | None:
        """The share of right answers. None if answers aren't judged."""
        return None if self.outcomes.correct is None else sum(self.outcomes.correct) / self.num_examples

    @property
    def accuracy_interval(self) -> tuple[float, float] | None:
        """The 95% Wilson interval of the accuracy."""
        correct = self.outcomes.correct
        return None if correct is None else wilson_interval(sum(correct), self.num_examples)

    @property
    def scores(self) -> dict[str, float]:
        """The means of the task's further scores, by name."""
        return {name: sum(values) / self.num_examples for name, values in self.outcomes.scores.items()}

    @property
    def mean_passes(self) -> float:
        """The mean number of passes per example, without the prefill and with commits."""
        return sum(self.outcomes.decoding) / self.num_examples

    @property
    def nfe_speedup(self) -> float | None:
        """The NFE speed-up over all examples (see the function `nfe_speedup`)."""
        return self.nfe_speedup_on(range(self.num_examples))

    @property
    def identical_to_ntp(self) -> float:
        """The share of answers that equal NTP's, token for token."""
        return sum(count == 0 for count in self.outcomes.differing) / self.num_examples

    @property
    def token_agreement(self) -> float:
        """The mean over answers of the share of positions at which the token equals NTP's: 1 minus the mean of `differing`.
        Every answer has the same weight, as in a tolerance of `setblock calibrate`."""
        return 1 - sum(self.differing) / self.num_examples

    @property
    def differing(self) -> list[float]:
        """Return for each example the share of positions, in 0..1 of the longer answer's, that differ from NTP's answer."""
        lengths = map(max, self.plain.outcomes.tokens, self.outcomes.tokens)
        return [count / max(length, 1) for count, length in zip(self.outcomes.differing, lengths, strict=True)]

    @property
    def lost(self) -> list[int]:
        """Return for each example 1 if NTP is right and this answer is wrong, -1 for the opposite, else 0."""
        theirs, ours = self.plain.outcomes.correct, self.outcomes.correct
        assert theirs is not None and ours is not None
        return [right - mine for right, mine in zip(theirs, ours, strict=True)]

    def nfe_speedup_on(self, examples: Sequence[int]) -> float | None:
        """Return the NFE speed-up over some of the examples, given by their indices."""
        ntp, passes = self.plain.outcomes.decoding, self.outcomes.decoding
        return nfe_speedup(ntp_passes=sum(ntp[i] for i in examples), passes=sum(passes[i] for i in examples))

    def figures(self) -> dict[str, Any]:
        """Return all figures for JSON. docs/method.md describes how passes are counted."""
        point, outcomes, ntp = point_to_json(self.point), self.outcomes, self.plain
        interval, task = self.accuracy_interval, self.run["task"]
        return {
            "task": task["name"],
            **task["options"],
            "settings": self.run["settings"],
            **point,
            **{name: point["sampler_options"].get(name) for name in HYPERPARAMETERS},
            "num_examples": self.num_examples,
            "accuracy": self.accuracy,
            "accuracy_interval": interval and list(interval),
            "scores": self.scores,
            "num_forwards": outcomes.num_forwards,
            "prefill_forwards": sum(outcomes.prefill),
            "mean_forwards": outcomes.num_forwards / self.num_examples,
            "mean_passes": self.mean_passes,
            "passes": {kind: sum(getattr(outcomes, kind)) for kind in ("prefill", "block", "commit")},
            "num_tokens": sum(outcomes.tokens),
            "tokens_per_forward": outcomes.tokens_per_forward,
            "nfe_speedup": self.nfe_speedup,
            "identical_to_ntp": self.identical_to_ntp,
            "token_agreement": self.token_agreement,
            "seconds": self.seconds,
            "ntp_accuracy": ntp.accuracy,
            "ntp_forwards": ntp.outcomes.num_forwards,
            "ntp_tokens": sum(ntp.outcomes.tokens),
            "ntp_seconds": ntp.seconds,
            **({} if self.references is None else _of_references(self.references)),
            "point": point,
            **self.made,
        }

    def to_json(self) -> dict[str, Any]:
        """Return the figures and the outcomes that they are computed from, for JSON."""
        kept = {"run": self.run, "outcomes": _OUTCOMES.dump_python(self.outcomes, mode="json")}
        return {**self.figures(), **kept, **({} if self.ntp else {"token_ids": list(map(list, self.token_ids or ()))})}


def _of_references(scores: TokenScores) -> dict[str, Any]:
    """Return the scores by the names under which a training run logs them, without its prefix `eval_`."""
    return {"token_loss": scores.loss, "mean_token_accuracy": scores.accuracy, "reference_tokens": scores.tokens}


def result_from_json(recorded: Any, *, ntp: Result | None) -> Result:
    """Return the result that `to_json` wrote, or raise `SetBlockError` if `recorded` is not one. The figures are computed again
    from the outcomes. `ntp` is plain decoding's result; None if this must be plain decoding's own."""
    try:
        made = {key: recorded[key] for key in ("date", "hardware", "versions")}
        seconds, token_ids, run = float(recorded["seconds"]), recorded.get("token_ids"), recorded["run"]
        point, outcomes = (
            point_from_json(recorded["point"], to_decode=False),
            _OUTCOMES.validate_python(recorded["outcomes"]),
        )
    except KeyError as error:
        raise SetBlockError(f"it has no {error}") from error
    except (TypeError, AttributeError, ValidationError) as error:
        raise SetBlockError(one_line(error)) from error
    columns = [each for each in vars(outcomes).values() if isinstance(each, tuple)] + [*outcomes.scores.values()]
    columns += [token_ids or ()] if point == NTP else []
    if {len(each) for each in columns} != {len(ntp.outcomes if ntp else outcomes)} or not outcomes.tokens:
        raise SetBlockError("its columns must have one length, that of plain decoding, at least 1")
    return Result(run, point, outcomes, seconds, ntp, made, token_ids)


def title_of(results: Sequence[Result]) -> str:
    """Return a title: the task, the number of examples and the model."""
    task, model = results[0].run["task"], results[0].run["model"]
    split = task["options"].get("split")
    examples = f"{task['num_examples']:,} {task['name']}{f', {split} split' if split else ''}"
    return f"{examples}; model {Path(model['name']).name} {model['fingerprint'][:8]}"


def wilson_interval(successes: int, trials: int) -> tuple[float, float]:
    """Return the 95% Wilson score interval of a share, within 0..1. It is valid at 0 and 1 and for few trials, too."""
    share, z = successes / trials, NormalDist().inv_cdf(0.975)
    weight = 1 + z**2 / trials
    middle = (share + z**2 / (2 * trials)) / weight
    half = z / weight * math.sqrt(share * (1 - share) / trials + (z / (2 * trials)) ** 2)
    return max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))  # rounding aside


def pareto_front(results: Sequence[Result]) -> list[Result]:
    """Return the results on the Pareto front of accuracy and passes, by ascending passes: no other result has at least the same
    accuracy in at most as many passes, unless both are equal. Empty if answers aren't judged."""
    points = [(each.mean_passes, each.accuracy) for each in results if each.accuracy is not None]
    if len(points) < len(results):
        return []

    def is_beaten(passes: float, accuracy: float) -> bool:
        return any(p <= passes and a >= accuracy and (p, a) != (passes, accuracy) for p, a in points)

    front = [each for each, point in zip(results, points, strict=True) if not is_beaten(*point)]
    return sorted(front, key=lambda each: each.mean_passes)
