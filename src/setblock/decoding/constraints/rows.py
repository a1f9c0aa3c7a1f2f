"""The constraints of each row (`RowConstraints`) and of a batch (`BatchConstraints`), and their updates after a pass.

The device is read only for rows with a constraint that isn't lazy.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from setblock.decoding.constraints.constraint import TokenConstraint
from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.state import BatchState


@dataclass(eq=False)
class RowConstraints:
    """One row's constraints, and what they have received."""

    constraints: Sequence[TokenConstraint]
    # The tokens of the answer that they have received, up to the first gap
    received: list[int] = field(default_factory=list)
    num_read: int = 0  # how many of them are final
    # By place in the answer, [V] bool: what was allowed there when its token was chosen; for places that are not final
    allowed: dict[int, Tensor] = field(default_factory=dict)
    is_over: bool = False  # whether they were informed that no more will come
    is_stuck: bool = False  # whether they allow no available token, so that the answer ends with an error

    @property
    def restricting(self) -> list[TokenConstraint]:
        """The constraints that restrict the next token."""
        return [each for each in self.constraints if each.constrains]

    def update(self, token_ids: Sequence[int], *, certain: int, ends: Sequence[int], final: bool) -> int | None:
        """Pass changes to the constraints, and return the length, in tokens, at which one ends the answer, or None.

        Args:
            token_ids: the answer from `num_read` on, up to its first gap.
            certain: the length of the answer, in tokens, up to which it is final.
            ends: token ids that end the answer.
            final: whether no more will come.
        """
        now, before = list(token_ids), self.received[self.num_read :]
        for place, token_id in enumerate(now):
            if token_id in ends:
                del now[place + 1 :]
                break
        differs = (place for place, (new, old) in enumerate(zip(now, before, strict=False)) if new != old)
        same = next(differs, min(len(now), len(before))) if before else 0
        for each in self.constraints:
            if same < len(before):
                each.retract(len(before) - same)
            if same < len(now):
                each.reveal(now[same:])
        self.received[self.num_read :] = now
        read = now[: max(0, certain - self.num_read)]
        if read and read[-1] in ends:
            read.pop()
        stop = None
        for each in self.constraints:  # the text is the last one: it does not read past another's stop
            each.read(read, final=final)
            if each.stop_length is not None:
                stop = each.stop_length if stop is None else min(stop, each.stop_length)
                read = read[: max(0, each.stop_length - self.num_read)]
        if self.allowed:
            for place in range(self.num_read, certain):
                self.allowed.pop(place, None)
        self.num_read = max(self.num_read, certain)
        self.is_over = final
        return stop


class OutputTokens(Protocol):
    """One row's output of a pass, as far as its constraints need it: a `RowOutput`."""

    @property
    def text_end(self) -> int:
        """The end of the text without a gap, drafts included."""

    @property
    def answer_end(self) -> int:
        """Where the answer ends now."""

    @property
    def finished(self) -> bool:
        """Whether the answer has ended."""

    def tokens_between(self, start: int, end: int) -> list[int] | None:
        """Return the tokens from position `start` to `end`, or None if not all of them are in the output."""


class BatchConstraints:
    """The constraints of a batch's rows."""

    def __init__(self, rows: Sequence[RowConstraints]) -> None:
        self.rows = list(rows)
        # Rows with a constraint that must be updated in each pass, and with one that restricts the next token
        self.listening = [row for row, each in enumerate(self.rows) if not all(one.is_lazy for one in each.constraints)]
        self.constrained = [row for row, each in enumerate(self.rows) if each.restricting]

    def update(self, state: BatchState, rows: Sequence[int] | None = None) -> None:
        """Update the constraints of `rows`, by default of those that must be updated in each pass. End answers that one
        of them wants to end. Waits for the device."""
        rows = self.listening if rows is None else rows
        if not rows:
            return
        stands = torch.stack([state.answer.text_end, state.answer.end, state.answer.finished], dim=1).tolist()
        for row in rows:
            each, params = self.rows[row], state.params.rows[row]
            if each.is_over:
                continue
            end, certain, is_final = stands[row]
            token_ids = state.tokens[row, params.prompt_length + each.num_read : max(end, certain)].tolist()
            stop = each.update(
                token_ids, certain=certain - params.prompt_length, ends=params.ends, final=bool(is_final)
            )
            if stop is not None:
                state.finish(row, end=params.prompt_length + stop)

    def read(
        self,
        outputs: Sequence[OutputTokens | None],
        requests: Sequence[RequestParams],
        state_of: Callable[[], BatchState],
    ) -> dict[int, int]:
        """Update the constraints of all rows by what a pass did to them, None for rows that were not in it. End answers
        that one of them wants to end, and return the positions at which these end, by row. `state_of` gives the state of
        the rows, if it is needed."""
        ended = {}
        for row, (of_row, each, params) in enumerate(zip(outputs, self.rows, requests, strict=True)):
            if of_row is None or each.is_over:
                continue
            start, end = params.prompt_length + each.num_read, max(of_row.text_end, of_row.answer_end)
            token_ids = of_row.tokens_between(start, end)
            if token_ids is None:
                token_ids = state_of().tokens[row, start:end].tolist()
            certain = of_row.answer_end - params.prompt_length
            stop = each.update(token_ids, certain=certain, ends=params.ends, final=of_row.finished)
            if stop is not None:
                ended[row] = params.prompt_length + stop
                state_of().finish(row, end=ended[row])
        return ended

    def fill(self, rows: Sequence[int], allowed: Tensor) -> None:
        """Set `allowed` [n, V] bool to False for tokens that may not come next in the n `rows`."""
        for row, here in zip(rows, allowed, strict=True):
            for constraint in self.rows[row].restricting:
                of_guide = torch.ones_like(here)
                constraint.fill(of_guide)
                here &= of_guide
