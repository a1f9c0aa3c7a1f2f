"""Hold what became of each example under one way to decode, in numbers that can be counted up again later.

Knows numbers. Knows nothing of tasks, models or files.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from setblock.data.tasks import Verdict
from setblock.decoding.answer.generation import Generation
from setblock.errors import SetBlockError

_COUNTS = ("tokens", "prefill", "block", "commit", "differing")


@dataclass(frozen=True)
class Outcomes:
    """Hold one number for each example, in the order of the task, in every column.

    Attributes:
        tokens: length of the answer, its end-of-text included.
        prefill, block, commit: forward passes by kind, as in `PassCounts`: those of each request on its own, so that a batch's
            pass counts once for every row that takes part in it.
        differing: at how many positions the answer is not NTP's. What one answer has past the end of the other differs.
        correct: 1 for a right answer, else 0; None where nobody can say.
        scores: further scores by name, in 0..1.
    """

    tokens: tuple[int, ...]
    prefill: tuple[int, ...]
    block: tuple[int, ...]
    commit: tuple[int, ...]
    differing: tuple[int, ...]
    correct: tuple[int, ...] | None = None
    scores: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    @property
    def decoding(self) -> tuple[int, ...]:
        """Return the passes without the prefill, commits included."""
        return tuple(block + commit for block, commit in zip(self.block, self.commit, strict=True))

    @property
    def num_forwards(self) -> int:
        """Return all passes of all examples, prefills included."""
        return sum(self.prefill) + sum(self.decoding)

    @property
    def tokens_per_forward(self) -> float:
        """Return the tokens per pass, prefills included."""
        return sum(self.tokens) / self.num_forwards

    def __len__(self) -> int:
        return len(self.tokens)

    def to_json(self) -> dict[str, Any]:
        """Return lists of numbers."""
        counts = {name: list(getattr(self, name)) for name in _COUNTS}
        scores = {name: list(values) for name, values in self.scores.items()}
        return {"correct": self.correct and list(self.correct), **counts, **({"scores": scores} if scores else {})}


def outcomes_from_json(recorded: Any) -> Outcomes:
    """Return what `to_json` wrote.

    Raises:
        SetBlockError: it is no such object.
    """
    try:
        counts = {name: tuple(map(int, recorded[name])) for name in _COUNTS}
        correct = None if recorded["correct"] is None else tuple(map(int, recorded["correct"]))
        scores = {str(name): tuple(map(float, values)) for name, values in recorded.get("scores", {}).items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SetBlockError(f"outcomes must be lists of numbers: correct, {', '.join(_COUNTS)}, scores") from error
    columns = [*counts.values(), *scores.values(), *([] if correct is None else [correct])]
    if len({len(column) for column in columns}) != 1 or not counts["tokens"]:
        raise SetBlockError("outcomes must be lists of one length, at least 1")
    return Outcomes(**counts, correct=correct, scores=scores)


def outcomes_of(
    answers: Sequence[Generation],
    *,
    ntp: Sequence[Sequence[int]] | None = None,
    verdicts: Sequence[Verdict] | None = None,
) -> Outcomes:
    """Count answers, at least one.

    Args:
        ntp: token ids of NTP's answers to the same examples; None where these are NTP's own.
        verdicts: on the answers; None where nobody can say.
    """
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
    """Return the number of positions at which two answers differ; past the end of the shorter one all do. Never less
    than their edit distance."""
    same = sum(a == b for a, b in zip(one, other, strict=False))
    return max(len(one), len(other)) - same


def nfe_speedup(*, ntp_passes: int, passes: int) -> float | None:
    """Return the passes that NTP took for each pass that was taken, prefills excluded and commits included on both
    sides.

    None where there was nothing to decode after the prefill.
    """
    return ntp_passes / passes if passes else None
