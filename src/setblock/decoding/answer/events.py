"""Describe what each pass did to an answer, for views that draw it: the raw events behind a stream of text.

Knows plain numbers. Knows nothing of tensors, models or text.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["prefill", "block", "commit"]


@dataclass(frozen=True)
class Reveal:
    """Describe a token that a pass revealed.

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
    """Describe one forward pass.

    Attributes:
        number: 0 for the prefill (for each pass of one that is cut into several), then 1, 2, ...
        kind: as it is counted in `PassCounts`.
        revealed: what it revealed, from left to right. May lie past the end of the answer, where that becomes known later.
        corrected: in method `exact`, where a draft was wrong, and what is there now; everything that was revealed to the
            right of it before this pass is void. None where the draft was right.
    """

    number: int
    kind: Kind
    revealed: list[Reveal]
    corrected: Reveal | None


def kind_of(*, is_prefill: bool, commits: bool) -> Kind:
    """Return the kind of a pass."""
    return "prefill" if is_prefill else "commit" if commits else "block"
