"""The loop over rows that stay together to the end (Algorithm 3). The engine has the loop over rows that come and go."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from setblock import devices
from setblock.decoding.batch import Batch
from setblock.decoding.drafts.shorten import draft_lengths_of
from setblock.decoding.step.inputs import prompts_in_parts, schedule_columns, schedule_of, schedules_ahead
from setblock.decoding.step.update import StepOutput
from setblock.devices import HostCopy, packed
from setblock.model.protocol.runtime import RowSchedule, Runner


@dataclass(kw_only=True)
class StaticBatch(Batch):
    """A batch whose rows stay together to the end, with the runner of their passes."""

    runner: Runner

    def steps(self) -> Iterator[StepOutput]:
        """Decode to the end (Algorithm 3), and yield a step after each forward pass. The body of the loop is `Batch.step`:
        inputs, logits, and the update of the state (`step.update`)."""
        passes = 0
        while (schedules := self._schedules()) and any(scheduled.tokens for scheduled in schedules):
            passes += not any(scheduled.is_prefill for scheduled in schedules)
            assert passes <= self.state.params.most_passes, "an answer does not end"
            yield self.step(self.runner, schedules)
        assert bool(self.state.answer.finished.all()), "decoding stops before an answer ends"

    def _schedules(self, *, decides: bool = True) -> list[RowSchedule]:
        """Return what the next pass feeds: parts of prompts until all are in the cache, then the result of `schedules`,
        or full drafts if `decides` is False."""
        whole, runner = self.whole_schedules(self.runner), self.runner
        if not any(scheduled.is_prefill for scheduled in whole):
            return self.schedules(runner) if decides else whole
        free_tokens = draft_lengths_of(self.model).free_tokens if runner.pads else None
        return prompts_in_parts(whole, self.state.params.rows, free_tokens=free_tokens)

    def run(self) -> None:
        """Decode to the end without yielding steps. Answers are the same as with `steps`.

        On a device that the host would have to wait for, each pass is launched before the results of the last one are
        read. It feeds the most that can be needed, and one extra pass runs after the last answer has ended.
        """
        if not self._can_run_ahead:
            for _ in self.steps():
                pass
            return
        schedules: list[RowSchedule] = []
        while not schedules or any(
            scheduled.is_cut for scheduled in schedules
        ):  # prompts may take several passes, while other rows wait
            schedules = self._schedules(decides=False)
            self.step(self.runner, schedules)
        copied, passes = self._copied_columns(), 0
        while (ahead := schedules_ahead(schedules, self.state.params.rows)) and any(
            scheduled.tokens for scheduled in ahead
        ):
            passes += 1
            # One pass is launched before the end is known
            assert passes <= 1 + self.state.params.most_passes, "an answer does not end"
            self.step(self.runner, ahead, is_ahead=True)
            schedules, copied = [schedule_of(row) for row in copied.read()[0]], self._copied_columns()
        assert bool(self.state.answer.finished.all()), "decoding stops before an answer ends"

    @torch.inference_mode()
    def _copied_columns(self) -> HostCopy:
        return HostCopy(packed(schedule_columns(self.state, fuses_commit=self.runner.fuses_commit, with_drafts=False)))

    @property
    def _can_run_ahead(self) -> bool:
        """Whether a pass may be launched before the last one is read. The host would have to wait to read it, the
        runner can be fed all that may be needed, no constraint needs to be updated between passes, and full drafts
        are free."""
        tokens = sum(2 * each.block_size for each in self.state.params.rows)
        return (
            devices.waits(self.state.tokens.device)
            and self.runner.fuses_commit
            and self.runner.most_refed is None
            and not self.policy.constraints.listening
            and tokens <= FREE_TOKENS
        )


FREE_TOKENS = 256
"""Tokens that a GPU computes in the time that it takes to read the weights: about its operations per second divided by
its bytes per second, in half precision."""
