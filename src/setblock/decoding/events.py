"""What each pass did to an answer, for whoever draws it: the raw events behind a stream of text.

Knows plain numbers. Knows nothing of tensors, models or text.
"""

from dataclasses import dataclass
from typing import Literal

Kind = Literal["prefill", "block", "commit"]


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
        number: 0 for the prefill (for each pass of one that is cut into several), then 1, 2, ...
        kind: as it is counted in `PassCounts`.
        revealed: what it revealed, from left to right. May lie past the end of the answer, where that becomes known later.
        corrected: in method `exact`, where a draft was wrong, and what stands there now; everything that was revealed to the
            right of it before this pass is void. None where the draft was right.
    """

    number: int
    kind: Kind
    revealed: list[Reveal]
    corrected: Reveal | None


def kind_of(*, is_prefill: bool, commits: bool) -> Kind:
    """The kind of a pass."""
    return "prefill" if is_prefill else "commit" if commits else "block"
