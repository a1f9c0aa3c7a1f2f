"""Outcomes: what became of each example under one way to decode, in numbers that can be counted up again later."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from setblock.data.tasks import Verdict
from setblock.decoding.generation import Generation
from setblock.errors import SetBlockError


@dataclass(frozen=True)
class Outcomes:
    """One number for each example, in the order of the task.

    Attributes:
        correct: 1 for a right answer, else 0.
        tokens: length of the answer, its end-of-text included.
        prefill, block, commit: forward passes by kind, as in `PassCounts`.
        differing: at how many positions the answer is not NTP's. What one answer has past the end of the other differs.
    """

    correct: tuple[int, ...]
    tokens: tuple[int, ...]
    prefill: tuple[int, ...]
    block: tuple[int, ...]
    commit: tuple[int, ...]
    differing: tuple[int, ...]

    @property
    def decoding(self) -> tuple[int, ...]:
        """Passes but for the prefill, commits included."""
        return tuple(block + commit for block, commit in zip(self.block, self.commit, strict=True))

    def __len__(self) -> int:
        return len(self.correct)

    def to_json(self) -> dict[str, list[int]]:
        """Lists of whole numbers."""
        return {name: list(values) for name, values in asdict(self).items()}


def outcomes_from_json(recorded: Any) -> Outcomes:
    """What `to_json` gave.

    Raises:
        SetBlockError: it is no such object.
    """
    names = [field.name for field in fields(Outcomes)]
    try:
        columns = {name: tuple(map(int, recorded[name])) for name in names}
    except (KeyError, TypeError, ValueError) as error:
        raise SetBlockError(f"outcomes must be lists of whole numbers: {', '.join(names)}") from error
    if len({len(column) for column in columns.values()}) != 1 or not columns["correct"]:
        raise SetBlockError("outcomes must be lists of one length, at least 1")
    return Outcomes(**columns)


def outcomes_of(
    verdicts: Sequence[Verdict] | None, answers: Sequence[Generation], ntp_token_ids: Sequence[Sequence[int]]
) -> Outcomes:
    """Count answers; `ntp_token_ids` are NTP's to the same examples. Where nothing was judged, nothing is right."""
    return Outcomes(
        correct=tuple(int(each.right) for each in verdicts) if verdicts else (0,) * len(answers),
        tokens=tuple(answer.num_tokens for answer in answers),
        prefill=tuple(answer.passes.prefill for answer in answers),
        block=tuple(answer.passes.block for answer in answers),
        commit=tuple(answer.passes.commit for answer in answers),
        differing=tuple(differing(a.token_ids, b) for a, b in zip(answers, ntp_token_ids, strict=True)),
    )


def differing(one: Sequence[int], other: Sequence[int]) -> int:
    """Positions at which two answers differ; past the end of the shorter one all do. Never less than their edit distance."""
    same = sum(a == b for a, b in zip(one, other, strict=False))
    return max(len(one), len(other)) - same
