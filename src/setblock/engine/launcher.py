"""The passes of an engine: each is launched, perhaps before the one before it is read, and read later."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from setblock import devices
from setblock.decoding.answer.row_output import RowOutput, output_tables, row_outputs
from setblock.decoding.settings.table import RequestParams
from setblock.decoding.step.inputs import schedules_ahead
from setblock.decoding.step.update import StepOutput
from setblock.devices import HostCopy, packed, sent
from setblock.engine.captured import CapturedPasses
from setblock.engine.pages import PagePool
from setblock.engine.request import EngineSequence
from setblock.engine.running import RunningBatch
from setblock.model.protocol.runtime import RowSchedule, Runner

FREE_TOKENS = 256
"""Tokens that a GPU computes in the time that it takes to read the weights: about its operations per second divided by
its bytes per second, in half precision."""

_NOTHING = RowSchedule(0, 0, 0, is_prefill=False)


@dataclass
class LaunchedPass:
    """A pass that was launched, and whose outputs were not read yet."""

    sequences: Sequence[EngineSequence]
    schedules: Sequence[RowSchedule]  # what it feeds each of them; upper bounds until the pass before it was read
    copy: HostCopy
    is_captured: bool


class Launcher:
    """Launches the passes of an engine, captured where they can be, and reads what they did."""

    def __init__(
        self,
        running: RunningBatch,
        pool: PagePool,
        runner: Runner,
        passes: CapturedPasses | None,
        *,
        on_step: Callable[[StepOutput], None] | None,
    ) -> None:
        """Launch nothing yet. `passes`: those that are captured, if any are. `on_step`: as in `Engine`."""
        self._running, self._pool, self._runner, self._passes = running, pool, runner, passes
        self._on_step = on_step

    def whole_schedules(self) -> Sequence[RowSchedule]:
        """Return what the next pass would feed each request without a budget. Drafts have the lengths that were chosen, and are
        cut in the batch's state unless the pass is captured."""
        if self._is_captured:
            return self._running.batch.choose_lengths(self._runner, is_static=True).schedules
        return self.cut_schedules()

    def cut_schedules(self) -> Sequence[RowSchedule]:
        """Return the same with drafts cut in any case."""
        if (chosen := self._running.batch.chosen) is None or chosen.requested is not None:
            self._running.changing()  # drafts may be cut
        else:
            self._running.load()
        if self._runner.most_refed is not None:  # it is asked about rows by their numbers
            self.place()
        return self._running.batch.schedules(self._runner)

    def place(self) -> None:
        """Tell the runner which requests run."""
        sequences = self._running.sequences
        self._runner.place([each.pages for each in sequences], [each.arrival for each in sequences])

    def launch(self, schedules: Sequence[RowSchedule]) -> LaunchedPass:
        """Launch a pass over the scheduled requests."""
        batch = self._running.batch
        if self._is_captured:
            fed = [row for row, scheduled in enumerate(schedules) if scheduled.tokens]
            requested = batch.choose_lengths(self._runner, is_static=True).requested
            if requested is not None:
                requested = [[each[row] for row in fed] for each in requested]
            launched = self._launch_captured(fed, [schedules[row] for row in fed], requested)
            if launched is not None:
                batch.feeds(schedules)
                return launched
        if (chosen := batch.chosen) is not None and chosen.requested is not None:
            self.cut_schedules()
        return self._launch_batch(schedules)

    def launch_ahead(self, launched: LaunchedPass) -> LaunchedPass | None:
        """Launch the pass after `launched`, whose outputs were not read. It feeds all that may be needed. Return None if that
        would gain nothing, cost more than reading first, or if it can't be known what is needed."""
        sequences, batch = self._running.sequences, self._running.batch
        requests = batch.state.params.rows
        gains = launched.is_captured or (self._runner.runs_ahead and devices.waits(batch.state.tokens.device))
        is_free = sum(2 * each.block_size for each in requests) <= FREE_TOKENS
        if not gains or not is_free or batch.policy.constraints.listening:
            return None
        fed = dict(zip(launched.sequences, launched.schedules, strict=True))
        if any(sequence not in fed or fed[sequence].is_cut for sequence in sequences):
            return None
        whole = [_with_block(fed[sequence], each) for sequence, each in zip(sequences, requests, strict=True)]
        bounds = schedules_ahead(whole, requests)
        rows = [row for row, bound in enumerate(bounds) if bound.tokens]
        pages, ends = [sequences[row].pages for row in rows], [bounds[row].end for row in rows]
        if not rows or not self._pool.extend(pages, ends):
            return None
        fed_sizes = [each.block_size if each.adapts_drafts else -1 for each in requests]
        if launched.is_captured:
            requested = [[-1] * len(rows), [fed_sizes[row] for row in rows]]
            return self._launch_captured(rows, [bounds[row] for row in rows], requested)
        if batch.state.params.adapts_drafts:
            batch.state.shorten_drafts(sent([[-1] * len(fed_sizes), fed_sizes], batch.state.tokens.device))
        return self._launch_batch(bounds, is_ahead=True)

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

    @property
    def _is_captured(self) -> bool:
        """Whether the next pass is captured."""
        batch = self._running.batch
        if self._passes is None or batch.next_schedules is None:
            return False
        return self._passes.can_capture(batch.state.params.rows, batch.next_schedules, batch.policy.constraints)

    def _launch_captured(
        self, rows: Sequence[int], schedules: Sequence[RowSchedule], requested: Sequence[Sequence[int]] | None
    ) -> LaunchedPass | None:
        """Launch a captured pass over some rows; return None if it can't be captured."""
        assert self._passes is not None
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
        return LaunchedPass(sequences, schedules, copy, is_captured=True)

    def _launch_batch(self, schedules: Sequence[RowSchedule], *, is_ahead: bool = False) -> LaunchedPass:
        """Launch a pass over all rows, one operation after the other."""
        self._running.changing()
        self.place()
        batch = self._running.batch
        step = batch.step(self._runner, schedules, is_ahead=is_ahead)
        if self._on_step is not None:
            self._on_step(step)
        copy = HostCopy(packed(*output_tables(batch.state, step)))
        return LaunchedPass(list(self._running.sequences), schedules, copy, is_captured=False)


def _with_block(scheduled: RowSchedule, params: RequestParams) -> RowSchedule:
    """Return a schedule that feeds a whole block, too, if it feeds anything and the row has blocks: a copied draft may be as
    long as one that came from a block."""
    if not scheduled.tokens or scheduled.is_prefill or params.settings.method == "ntp":
        return scheduled
    return scheduled._replace(end=max(scheduled.end, min(scheduled.block_start + params.block_size, params.limit)))
