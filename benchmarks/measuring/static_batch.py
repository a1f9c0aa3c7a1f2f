"""The plain loop over rows that stay together to the end (Algorithm 3): what the engine does, without its scheduler, pages and
rows that come and go. Tests compare the engine with it, and look at the state after each pass."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from setblock.decoding.answer.row_output import RowOutput, output_tables, row_outputs
from setblock.decoding.batch import Batch
from setblock.decoding.drafts.shorten import draft_lengths_of
from setblock.decoding.settings.resolve import check_rows
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step.inputs import prompts_in_parts
from setblock.decoding.step.update import StepOutput
from setblock.devices import HostCopy, packed
from setblock.model.protocol.runtime import LanguageModel, RowSchedule, Runner


@dataclass(kw_only=True)
class StaticBatch(Batch):
    """A batch whose rows stay together to the end, with the runner of their passes."""

    runner: Runner

    def steps(self) -> Iterator[StepOutput]:
        """Decode to the end (Algorithm 3), and yield a step after each forward pass."""
        passes = 0
        while (schedules := self._schedules()) and any(scheduled.tokens for scheduled in schedules):
            passes += not any(scheduled.is_prefill for scheduled in schedules)
            assert passes <= self.state.params.most_passes, "an answer does not end"
            yield self.step(self.runner, schedules)
        assert bool(self.state.answer.finished.all()), "decoding stops before an answer ends"

    def run(self) -> None:
        """Decode to the end."""
        for _ in self.steps():
            pass

    @torch.inference_mode()
    def outputs(self, step: StepOutput) -> list[RowOutput]:
        """Update all rows' constraints, and return what the last step did to each row. Waits for the device, once."""
        outputs = self.read(row_outputs(HostCopy(packed(*output_tables(self.state, step)))))
        return [each for each in outputs if each is not None]  # all

    def new_texts(self, outputs: Sequence[RowOutput]) -> list[str]:
        """Return each row's text that became certain since the last call, given the outputs of the last step."""
        return [text.take(final=each.finished) for text, each in zip(self.texts, outputs, strict=True)]

    def _schedules(self) -> list[RowSchedule]:
        """Return what the next pass feeds: parts of prompts until all are in the cache, then the result of `schedules`."""
        whole = self.whole_schedules(self.runner)
        if not any(scheduled.is_prefill for scheduled in whole):
            return self.schedules(self.runner)
        free_tokens = draft_lengths_of(self.model).free_tokens if self.runner.pads else None
        return prompts_in_parts(whole, self.state.params.rows, free_tokens=free_tokens)


def static_batch(
    model: LanguageModel, prompts: Sequence[Sequence[int]], settings: Sequence[DecodingSettings]
) -> StaticBatch:
    """Check requests as `check_rows` does, and return their batch: a row for each answer. Rows may differ in settings."""
    rows = Batch.opened(check_rows(model, prompts, settings))
    count, longest = len(prompts), max(params.limit for params in rows.state.params.rows)
    runner = model.runner(pages=count, page_tokens=longest, rows=count, whole_rows=True)
    runner.place([[row] for row in range(count)], range(count))
    return StaticBatch(**vars(rows), runner=runner)
