"""Define what the host learns of a pass about one row.

Knows plain numbers. Knows nothing of tensors, models or text.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from setblock.decoding.answer.events import PassEvent
from setblock.decoding.step.plan import Span


@dataclass(frozen=True)
class RowNews:
    """Hold what a pass did to one row.

    Attributes:
        event: what the pass did, or None where the row took no part.
        span: what the next pass feeds it.
        committed: how many positions the cache holds exactly.
        prefilled: as in `Cached`.
        finished, failed, text_end: as in `Answer`.
        answer_end: where the answer ends now.
        tokens: its tokens from position `tokens_start` on, as far as they may have changed.
        tokens_start: where the answer ended before the pass.
    """

    event: PassEvent | None
    span: Span
    committed: int
    prefilled: bool
    finished: bool
    failed: bool
    text_end: int
    answer_end: int
    tokens: Sequence[int]
    tokens_start: int

    def tokens_between(self, start: int, end: int) -> list[int] | None:
        """Return the row's tokens from `start` to `end`, or None where they are not among those that were read."""
        first, last = start - self.tokens_start, end - self.tokens_start
        return list(self.tokens[first:last]) if first >= 0 and last <= len(self.tokens) else None
