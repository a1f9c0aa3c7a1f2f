"""What each pass did to an answer, for whoever draws it: the raw events behind a stream of text.

Knows steps. Knows nothing of models or text.
"""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from setblock.decoding.loop import DecodingStep


@dataclass(frozen=True)
class Reveal:
    """A token that a pass put in its place.

    Attributes:
        index: its place in the answer, from 0.
        token_id: what it is.
        entropy: nats, of the distribution it was chosen from.
    """

    index: int
    token_id: int
    entropy: float


@dataclass(frozen=True)
class PassEvent:
    """One forward pass.

    Attributes:
        number: 0 for the prefill, then 1, 2, ...
        kind: as it is counted in `PassCounts`.
        revealed: what it revealed, from left to right. May lie past the end of the answer, where that becomes known later.
        corrected: in method `exact`, where a draft was wrong, and what stands there now; everything that was revealed to the
            right of it before this pass is void. None where the draft was right.
    """

    number: int
    kind: Literal["prefill", "block", "commit"]
    revealed: list[Reveal]
    corrected: Reveal | None


def pass_event(step: DecodingStep, *, row: int, number: int, prompt_length: int, is_ntp: bool) -> PassEvent:
    """The event of one row of a step. The row has taken part in it, as its pass `number`."""

    def reveals(where: Tensor, positions: Tensor, token_ids: Tensor, entropy: Tensor) -> list[Reveal]:
        places = where[row].nonzero()[:, 0].tolist()
        return [
            Reveal(int(positions[row, i]) - prompt_length, int(token_ids[row, i]), float(entropy[row, i]))
            for i in places
        ]

    corrected: list[Reveal] = []
    if step.check is not None and step.logits.commit is not None:
        check = step.check
        corrected = reveals(check.replaced, step.logits.commit.positions, check.token_ids, check.entropy)
    is_commit = bool(step.committed[row]) and not is_ntp
    return PassEvent(
        number=number,
        kind="prefill" if step.is_prefill else "commit" if is_commit else "block",
        revealed=reveals(step.revealed, step.positions, step.token_ids, step.entropy),
        corrected=corrected[0] if corrected else None,
    )
