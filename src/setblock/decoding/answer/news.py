"""Bring to the host what it learns of a pass: one copy for the text, the events and the plan of the next pass.

Knows a state and a step. Knows nothing of models or text.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from setblock.decoding.answer.generation import PassEvent, Reveal, kind_of
from setblock.decoding.answer.record import Record
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.absorb import DecodingStep
from setblock.decoding.step.feed import Span, span_of, standing
from setblock.devices import HostCopy


@dataclass(frozen=True)
class RowNews:
    """Hold what a pass did to one row.

    Attributes:
        event: what the pass did, or None where the row took no part.
        span: what the next pass feeds it, from what the cache holds exactly on.
        prefilled: as in `Cached`.
        finished, failed, text_end: as in `Answer`.
        answer_end: where the answer ends now.
        tokens: its tokens from position `tokens_start` on, as far as they may have changed.
        tokens_start: where the answer ended before the pass.
    """

    event: PassEvent | None
    span: Span
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


def read_news(
    state: BatchState, step: DecodingStep, record: Record, *, fuses_commit: bool, since: Tensor
) -> list[RowNews]:
    """Return the news of all rows after a step. Waits for the device, once.

    Args:
        fuses_commit: as in `BatchState.next_end`.
        since: [B] int64, where answers ended before the step.
    """
    read = step.reading
    width = 2 * state.terms.block_width  # of a draft that was checked and the block behind it
    window = (since[:, None] + state.columns[:width]).clamp(max=state.tokens.shape[1] - 1)
    cache, answer = state.cache, state.answer
    scalars = (
        *(cache.prefilled, answer.finished, answer.failed, answer.text_end, answer.end, since, record.number),
        *(read.took_part, read.is_prefill, read.committed & record.commits, state.terms.prompt_length),
    )
    parts = [
        standing(state, fuses_commit=fuses_commit),
        torch.stack(scalars, dim=1),
        state.tokens.gather(1, window),
        *_revealing(step.positions, step.revealed, step.token_ids, step.entropy[:, : state.terms.block_width]),
    ]
    commit, check = read.given.commit, read.check
    if commit is not None and check is not None:
        parts += _revealing(
            commit.positions, check.replaced, check.token_ids, step.entropy[:, state.terms.block_width :]
        )
    widths = [part.shape[1] for part in parts]
    rows = HostCopy(torch.cat(parts, dim=1)).read()  # float64 holds each of these numbers as it is
    ends = list(accumulate(widths))
    return [_row_news([row[end - width : end] for width, end in zip(widths, ends, strict=True)]) for row in rows]


def _revealing(positions: Tensor, where: Tensor, token_ids: Tensor, entropy: Tensor) -> tuple[Tensor, ...]:
    return positions, where, token_ids, entropy.double()


def _row_news(parts: list[list[float]]) -> RowNews:
    stands, scalars, tokens, *revealing = parts
    prefilled, finished, failed, text_end, answer_end, since, number, took_part, is_prefill, commits, start = map(
        int, scalars
    )
    revealed = _reveals(revealing[:4], start)
    corrected = _reveals(revealing[4:], start) if len(revealing) > 4 else []
    event = PassEvent(
        number=number,
        kind=kind_of(is_prefill=bool(is_prefill), commits=bool(commits)),
        revealed=revealed,
        corrected=corrected[0] if corrected else None,
    )
    return RowNews(
        event=event if took_part else None,
        span=span_of([int(each) for each in stands]),
        prefilled=bool(prefilled),
        finished=bool(finished),
        failed=bool(failed),
        text_end=text_end,
        answer_end=answer_end,
        tokens=[int(each) for each in tokens],
        tokens_start=since,
    )


def _reveals(columns: list[list[float]], start: int) -> list[Reveal]:
    return [
        Reveal(int(position) - start, int(token_id), entropy)
        for position, where, token_id, entropy in zip(*columns, strict=True)
        if where
    ]
