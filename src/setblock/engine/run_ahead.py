"""Captured passes over the requests that run, each of which may be launched before the one before it is read."""

from collections.abc import Sequence
from dataclasses import dataclass

from setblock.decoding.answer.row_output import RowOutput, row_outputs
from setblock.decoding.loop import FREE_TOKENS
from setblock.decoding.settings.table import RequestParams
from setblock.decoding.step.inputs import schedules_ahead
from setblock.devices import HostCopy
from setblock.engine.captured import CapturedPasses
from setblock.engine.pages import PagePool
from setblock.engine.request import EngineSequence
from setblock.engine.running import RunningBatch
from setblock.model.protocol.runtime import RowSchedule, Runner

_NOTHING = RowSchedule(0, 0, 0, is_prefill=False)


@dataclass
class LaunchedPass:
    """A captured pass that was launched, and whose outputs were not read yet."""

    sequences: Sequence[EngineSequence]
    schedules: Sequence[RowSchedule]  # what it feeds each of them; upper bounds until the pass before it was read
    copy: HostCopy


class CapturedLauncher:
    """Launches captured passes, and reads what they did."""

    def __init__(self, passes: CapturedPasses, running: RunningBatch, pool: PagePool, runner: Runner) -> None:
        self._passes, self._running, self._pool, self._runner = passes, running, pool, runner

    @property
    def is_next(self) -> bool:
        """Whether the next pass is a captured one."""
        batch = self._running.batch
        return batch.next_schedules is not None and self._passes.can_capture(
            batch.state.params.rows, batch.next_schedules, batch.policy.constraints
        )

    def whole_schedules(self) -> Sequence[RowSchedule]:
        """Return what the next pass, a captured one, would feed each request without a budget."""
        return self._running.batch.choose_lengths(self._runner, is_static=True).schedules

    def launch(self, schedules: Sequence[RowSchedule]) -> LaunchedPass | None:
        """Launch a pass over the scheduled requests; return None if it can't be captured."""
        batch = self._running.batch
        fed = [row for row, scheduled in enumerate(schedules) if scheduled.tokens]
        requested = batch.choose_lengths(self._runner, is_static=True).requested
        if requested is not None:
            requested = [[each[row] for row in fed] for each in requested]
        launched = self._launch(fed, [schedules[row] for row in fed], requested)
        if launched is not None:
            batch.feeds(schedules)
        return launched

    def launch_ahead(self, launched: LaunchedPass) -> LaunchedPass | None:
        """Launch the pass after `launched`, whose outputs were not read. It feeds all that may be needed. Return None if that
        would cost more than reading first, or if it can't be known what is needed."""
        sequences, batch = self._running.sequences, self._running.batch
        requests = batch.state.params.rows
        is_free = sum(2 * each.block_size for each in requests) <= FREE_TOKENS
        if not is_free or batch.policy.constraints.listening:
            return None
        fed = dict(zip(launched.sequences, launched.schedules, strict=True))
        if any(sequence not in fed for sequence in sequences):
            return None
        whole = [_with_block(fed[sequence], each) for sequence, each in zip(sequences, requests, strict=True)]
        bounds = schedules_ahead(whole, requests)
        rows = [row for row, bound in enumerate(bounds) if bound.tokens]
        pages, ends = [sequences[row].pages for row in rows], [bounds[row].end for row in rows]
        if not rows or not self._pool.extend(pages, ends):
            return None
        fed_sizes = [requests[row].block_size if requests[row].adapts_drafts else -1 for row in rows]
        return self._launch(rows, [bounds[row] for row in rows], [[-1] * len(rows), fed_sizes])

    def _launch(
        self, rows: Sequence[int], schedules: Sequence[RowSchedule], requested: Sequence[Sequence[int]] | None
    ) -> LaunchedPass | None:
        running = self._running
        running.save()
        sequences, requests = [running.sequences[row] for row in rows], running.batch.state.params.rows
        copy = self._passes.launch(
            [sequence.row for sequence in sequences],
            [requests[row] for row in rows],
            schedules,
            pages=[sequence.pages for sequence in sequences],
            requested=requested,
        )
        if copy is None:
            return None
        running.table_has_changed()
        return LaunchedPass(sequences, schedules, copy)

    def read(
        self, launched: LaunchedPass, ahead: LaunchedPass | None
    ) -> tuple[list[RowSchedule], list[RowOutput | None]]:
        """Wait for a pass. Return what it fed each request and what it did, None for requests that were not in it. `ahead`: the
        pass after it, if that was launched; what it feeds is known now."""
        of_sequence = dict(
            zip(launched.sequences, row_outputs(launched.copy), strict=False)
        )  # without those that fill up
        if ahead is not None:
            ahead.schedules = [of_sequence[sequence].scheduled for sequence in ahead.sequences]
            for sequence, scheduled in zip(ahead.sequences, ahead.schedules, strict=True):
                is_expected = self._pool.pages_for(scheduled.end) <= len(sequence.pages)
                assert is_expected, "a pass was fed more than was expected"
        fed = dict(zip(launched.sequences, launched.schedules, strict=True))
        sequences, running = self._running.sequences, self._running
        outputs = running.batch.read([of_sequence.get(sequence) for sequence in sequences], running.changing)
        return [fed.get(sequence, _NOTHING) for sequence in sequences], outputs


def _with_block(scheduled: RowSchedule, params: RequestParams) -> RowSchedule:
    """Return a schedule that feeds a whole block, too, if it feeds anything and the row has blocks: a copied draft may be as
    long as one that came from a block."""
    if not scheduled.tokens or params.settings.method == "ntp":
        return scheduled
    return scheduled._replace(end=max(scheduled.end, min(scheduled.block_start + params.block_size, params.limit)))
