"""Define what accompanies a row: it follows the row's tokens, and may restrict the next ones. Inform a batch's constraints.

Knows rows of tokens. Knows nothing of models or logits. The text of an answer is a constraint; a grammar is another. The device
is read only for rows whose constraints listen.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from setblock.decoding.state.state import BatchState, RequestParams

if TYPE_CHECKING:  # which knows steps
    from setblock.decoding.answer.row_output import RowOutput


class TokenConstraint:
    """Follow one row, and perhaps restrict its tokens. A subclass overrides the methods that it needs.

    After each pass it receives what has changed: by `retract` and `reveal`, text without a gap, drafts too; then by `read`,
    final text.

    Attributes:
        is_lazy: whether it need not hear of each pass at once, but may hear of it when somebody asks for its row.
        constrains: whether it says what may come next. Then, in each pass, it receives tokens tentatively too (by `reveal`, and
            soon after by `retract`).
        stop_length: of the answer, in tokens, once the constraint wants it to end there; else None.
    """

    is_lazy: bool = False
    constrains: bool = False
    stop_length: int | None = None

    def reveal(self, token_ids: Sequence[int]) -> None:
        """Append these tokens to the answer. In method `exact` they may be a draft, and wrong."""

    def retract(self, count: int) -> None:
        """Drop the last `count` tokens of the answer: a draft was corrected or given up."""

    def read(self, token_ids: Sequence[int], *, final: bool = False) -> None:
        """Take the next tokens of the answer that are certain, without an end-of-text. `final`: no more will come."""

    def fill(self, allowed: Tensor) -> None:
        """Set `allowed` [V] bool, on the CPU, to False where a token may not come right after all tokens that it has received.
        Tokens that end the answer are allowed where it may end. It is never asked behind a gap: such positions stay masked.
        """


class ConstraintFactory(Protocol):
    """Make a constraint for each answer of a request, which carries it in `DecodingSettings.constraints`."""

    def constraint(self, params: RequestParams, *, vocab_size: int) -> TokenConstraint:
        """Return a constraint for a row that is about to begin, or raise `SetBlockError` if the model does not allow it."""


@dataclass(eq=False)
class RowConstraints:
    """Hold one row's constraints and what they have heard."""

    constraints: Sequence[TokenConstraint]
    # The tokens of the answer that they have received, as far as it goes without a gap
    received: list[int] = field(default_factory=list)
    num_read: int = 0  # how many of them were certain
    # By place in the answer, what was allowed there when a token was put in its place; of places that are not certain
    allowed: dict[int, Tensor] = field(default_factory=dict)
    is_over: bool = False  # whether they know that no more will come
    is_stuck: bool = False  # whether they allow no token that may be chosen, so that the answer ends in an error

    @property
    def restricting(self) -> list[TokenConstraint]:
        """Return the constraints that restrict what may come next."""
        return [each for each in self.constraints if each.constrains]

    def update(self, token_ids: Sequence[int], *, certain: int, ends: Sequence[int], final: bool) -> int | None:
        """Report what has changed, and return where the answer is to stop, in tokens, if it is. `token_ids` are the answer from
        `num_read` on, as far as it goes without a gap; up to length `certain` it will not change."""
        end = next((place + 1 for place, each in enumerate(token_ids) if each in ends), len(token_ids))
        now, before = list(token_ids[:end]), self.received[self.num_read :]
        differs = (place for place, (new, old) in enumerate(zip(now, before, strict=False)) if new != old)
        same = next(differs, min(len(now), len(before)))
        for each in self.constraints:
            if same < len(before):
                each.retract(len(before) - same)
            if same < len(now):
                each.reveal(now[same:])
        self.received[self.num_read :] = now
        read = now[: max(0, certain - self.num_read)]
        if read and read[-1] in ends:
            read.pop()
        for each in self.constraints:  # the text comes last: it does not read what comes behind another's stop
            each.read(read, final=final)
            if each.stop_length is not None:
                read = read[: max(0, each.stop_length - self.num_read)]
        for place in range(self.num_read, certain):
            self.allowed.pop(place, None)
        self.num_read = max(self.num_read, certain)
        self.is_over = final
        return min((each.stop_length for each in self.constraints if each.stop_length is not None), default=None)


class BatchConstraints:
    """Hold the constraints of the rows of a batch."""

    def __init__(self, rows: Sequence[RowConstraints]) -> None:
        self.rows = list(rows)
        # Rows with a constraint that has to hear of each pass at once, and with one that says what may come next
        self.listening = [row for row, each in enumerate(self.rows) if not all(one.is_lazy for one in each.constraints)]
        self.constrained = [row for row, each in enumerate(self.rows) if each.restricting]

    def update(
        self, state: BatchState, rows: Sequence[int] | None = None, *, outputs: "Sequence[RowOutput] | None" = None
    ) -> None:
        """Report what has become of `rows`, or, after a pass, of those whose constraints listen. Ends answers that one of them
        wants to end. `outputs` of all rows, where they have been read, save a wait."""
        rows = self.listening if rows is None else rows
        if not rows:
            return
        if outputs is None:
            stands = torch.stack([state.answer.text_end, state.answer.end, state.answer.finished], dim=1).tolist()
        else:
            stands = [(each.text_end, each.answer_end, each.finished) for each in outputs]
        for row in rows:
            each, params = self.rows[row], state.params.rows[row]
            if each.is_over:
                continue
            end, certain, is_final = stands[row]
            start, end = params.prompt_length + each.num_read, max(end, certain)
            token_ids = None if outputs is None else outputs[row].tokens_between(start, end)
            if token_ids is None:
                token_ids = state.tokens[row, start:end].tolist()
            certain -= params.prompt_length
            stop = each.update(token_ids, certain=certain, ends=params.ends, final=bool(is_final))
            if stop is not None:
                state.finish(row, end=params.prompt_length + stop)

    def fill(self, rows: Sequence[int], allowed: Tensor) -> None:
        """Set `allowed` [n, V] bool to False where a token may not come next in `rows`."""
        for row, here in zip(rows, allowed, strict=True):
            for constraint in self.rows[row].restricting:
                of_guide = torch.ones_like(here)
                constraint.fill(of_guide)
                here &= of_guide
