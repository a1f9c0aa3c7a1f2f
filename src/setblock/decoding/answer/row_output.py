"""The outputs of a pass by row, in one copy to the host: for the text, callers and the plan of the next pass."""

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from setblock.decoding.answer.generation import Kind, Reveal
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.inputs import schedule_columns, schedule_of
from setblock.decoding.step.update import StepOutput
from setblock.devices import HostCopy
from setblock.model.protocol.runtime import RowSchedule


class RowOutput(NamedTuple):
    """What a pass did to one row, and the row's progress after it."""

    number: int  # 0 for the prefill (for each pass of one that is cut into several), then 1, 2, ...
    kind: Kind  # as it is counted in `PassCounts`
    # The tokens that the pass revealed, from left to right. Some may turn out later to be past the end of the answer
    revealed: Sequence[Reveal]
    # In method `exact`, the right token at the first place where a draft was wrong; all that earlier passes revealed
    # after it is void. None if the draft was right
    corrected: Reveal | None
    scheduled: RowSchedule  # what the next pass feeds the row
    prefilled: bool  # as in `Cached`
    finished: bool  # as in `Answer`, and the following two
    failed: bool
    text_end: int
    answer_end: int  # where the answer ends now
    tokens: Sequence[int]  # from position `tokens_start` on, as far as they may have changed
    tokens_start: int  # where the answer ended before the pass

    def ended(self, end: int) -> "RowOutput":
        """Return the same of a row whose answer ends at position `end`, past its last token."""
        scheduled = self.scheduled._replace(
            end=self.scheduled.start, is_prefill=False, kinds=(), token_ids=(), copied=0
        )
        return self._replace(scheduled=scheduled, finished=True, failed=False, text_end=end, answer_end=end)

    def tokens_between(self, start: int, end: int) -> list[int] | None:
        """Return the row's tokens from position `start` to `end`, or None if not all of them are in `tokens`."""
        first, last = start - self.tokens_start, end - self.tokens_start
        return list(self.tokens[first:last]) if first >= 0 and last <= len(self.tokens) else None


def output_tables(state: BatchState, step: StepOutput) -> list[Tensor]:
    """Return tables [B, n] from which `row_outputs` builds the outputs of all rows after a step."""
    record = state.record
    assert record is not None
    size, plan = state.params.block_width, step.plan
    # A draft that was checked, and the block after it
    window = (step.since[:, None] + state.columns[: 2 * size]).clamp(max=state.tokens.shape[1] - 1)
    cache, answer = state.cache, state.answer
    scalars = (
        *(cache.prefilled, answer.finished, answer.failed, answer.text_end, answer.end, step.since, record.number),
        *(step.is_prefill, step.is_commit & ~state.params.is_ntp, state.params.prompt_length),
    )
    parts = [
        schedule_columns(state, fuses_commit=plan.fuses_commit, with_drafts=True),
        torch.stack(scalars, dim=1),
        state.tokens.gather(1, window),
        *(step.positions, step.revealed, step.token_ids),
        step.entropy[:, :size],
    ]
    if (check := step.check) is not None:
        parts += (check.positions, check.replaced, check.token_ids, step.entropy[:, size:])
    return parts


def row_outputs(copy: HostCopy) -> list[RowOutput]:
    """Return the outputs of all rows, given a copy of `output_tables`. Wait until it has arrived."""
    return [_row_output(*row) for row in zip(*copy.read(), strict=True)]


def _row_output(of_span: list[int], scalars: list[int], tokens: list[int], *revealing: list[Any]) -> RowOutput:
    prefilled, finished, failed, text_end, answer_end, since, number, is_prefill, commits, start = scalars
    kind: Kind = "prefill" if is_prefill else "commit" if commits else "block"
    return RowOutput(
        number=number,
        kind=kind,
        revealed=_reveals(revealing[:4], start),
        corrected=next(iter(_reveals(revealing[4:], start)), None),
        scheduled=schedule_of(of_span),
        prefilled=bool(prefilled),
        finished=bool(finished),
        failed=bool(failed),
        text_end=text_end,
        answer_end=answer_end,
        tokens=tokens,
        tokens_start=since,
    )


def _reveals(columns: Sequence[list[Any]], start: int) -> list[Reveal]:
    return [
        Reveal(position - start, token_id, entropy)
        for position, where, token_id, entropy in zip(*columns, strict=True)
        if where
    ]
