"""A batch of requests: its state, policy and texts, and one pass of it (`Batch.step`).

The loop over a fixed set of rows is in `loop`. The engine adds and removes rows between passes. The cache belongs to the
`Runner`.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from setblock import devices
from setblock.decoding.answer.detokenize import AnswerText
from setblock.decoding.answer.generation import Failure, FinishReason, Generation, TokenLogprobs
from setblock.decoding.answer.row_output import RowOutput
from setblock.decoding.drafts.shorten import (
    RowHistory,
    checks_draft,
    draft_lengths_of,
    new_history,
    settling_schedules,
    shortened_schedules,
)
from setblock.decoding.settings.resolve import CheckedRows
from setblock.decoding.state.joining import joined, joined_list, open_state
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.choice import Policy
from setblock.decoding.step.inputs import (
    next_schedules,
    plan_pass,
    prepare_inputs,
)
from setblock.decoding.step.reading import kernel_for
from setblock.decoding.step.update import StepOutput, update
from setblock.locks import lock_of, one_at_a_time
from setblock.model.protocol.runtime import LanguageModel, PassPlan, RowSchedule, Runner, pass_kind


class ChosenLengths(NamedTuple):
    """How much each row of a batch drafts in the next pass."""

    schedules: Sequence[RowSchedule]
    requested: (
        list[list[int]] | None
    )  # [2, B], as in `BatchState.shorten_drafts`; None if the state's drafts are fed whole

    def select(self, rows: Sequence[int]) -> "ChosenLengths":
        """Return those of `rows` only."""
        requested = None if self.requested is None else [[each[row] for row in rows] for each in self.requested]
        return ChosenLengths([self.schedules[row] for row in rows], requested)


@dataclass
class Batch:
    """Rows that are ready to decode, one for each answer. They may differ in settings and progress."""

    model: LanguageModel
    state: BatchState
    policy: Policy
    texts: list[AnswerText]
    started: list[float]
    drafts: list[RowHistory | None]  # of rows whose drafts vary in length
    next_schedules: list[RowSchedule] | None = None  # of the next pass, by the state; None until they are computed
    chosen: "ChosenLengths | None" = None  # for the next pass, until they are applied to the state

    @classmethod
    @torch.inference_mode()  # as in the passes: code compiled for inference tensors is not reused for others
    def opened(cls, checked: CheckedRows) -> "Batch":
        """Return the batch of checked requests, with tensors of their full capacity on the model's device."""
        model, params = checked.model, checked.params
        state = open_state(
            checked.prompts, params, sbd_config=model.sbd_config, device=model.device, draft_text=model.draft_text
        )
        with lock_of(model):
            drafts = [new_history(draft_lengths_of(model)) if row.adapts_drafts else None for row in params]
        return cls(
            model=model,
            state=state,
            policy=Policy(
                params,
                checked.constraints,
                vocab_size=model.vocab_size,
                device=model.device,
                columns=state.params.columns,
                kernel=kernel_for(model),
            ),
            texts=checked.texts,
            drafts=drafts,
            started=[checked.started] * len(params),
            next_schedules=[RowSchedule(0, len(prompt), len(prompt), is_prefill=True) for prompt in checked.prompts],
        )

    @classmethod
    @torch.inference_mode()
    def joined(
        cls, parts: Sequence["Batch"], rows: Sequence[int] | None = None, *, state: BatchState | None = None
    ) -> "Batch":
        """Return one batch with the rows of several, or only `rows`, numbered over all parts. Texts and constraints are
        shared with the parts, so a row may continue in one batch only. `state`: of these rows, if there is one already."""
        state = joined([part.state for part in parts], rows) if state is None else state
        return cls(
            model=parts[0].model,
            state=state,
            policy=Policy.joined([part.policy for part in parts], state.params, rows),
            texts=joined_list([part.texts for part in parts], rows),
            drafts=joined_list([part.drafts for part in parts], rows),
            started=joined_list([part.started for part in parts], rows),
        )

    def select(self, rows: Sequence[int], *, state: BatchState | None = None) -> "Batch":
        """Return a batch of `rows` only, at least one, as `joined` does. It keeps the schedules of the next pass."""
        select = Batch.joined([self], rows, state=state)
        select.next_schedules = None if self.next_schedules is None else [self.next_schedules[row] for row in rows]
        select.chosen = None if self.chosen is None else self.chosen.select(rows)
        return select

    @torch.inference_mode()
    def whole_schedules(self, runner: Runner) -> list[RowSchedule]:
        """Return what the next pass feeds each row with the drafts that the state holds."""
        if self.next_schedules is None:
            self.next_schedules = next_schedules(self.state, fuses_commit=runner.fuses_commit)
        return self.next_schedules

    @one_at_a_time(of=lambda rows: rows.model)  # requests to a model share the statistics of drafts
    def choose_lengths(self, runner: Runner, *, is_static: bool = False) -> "ChosenLengths":
        """Choose for each row the draft length that pays, once for each pass. `is_static`: whether the next pass has one of
        few sizes. Waits for the device unless the outputs of the last step were read."""
        if self.chosen is None:
            whole = self.whole_schedules(runner)
            self.chosen = ChosenLengths(whole, None)
            if self.state.params.adapts_drafts or runner.most_refed is not None:
                found = shortened_schedules(
                    draft_lengths_of(self.model),
                    self.drafts,
                    settling_schedules(whole, self.state.params.rows, runner),
                    self.state,
                    runner,
                    is_static=is_static,
                )
                pairs = list(zip(found, whole, strict=True))
                cut = [each.drafted if each.drafted < full.drafted else -1 for each, full in pairs]
                is_changed = any((each.end, each.block_start) != (full.end, full.block_start) for each, full in pairs)
                requested = [cut, [each.fed_size for each in found]] if is_changed or not runner.fuses_commit else None
                self.chosen = ChosenLengths(found, requested)
        return self.chosen

    @torch.inference_mode()
    def schedules(self, runner: Runner) -> list[RowSchedule]:
        """Return what the next pass feeds each row; a finished row is fed nothing. Shorten each row's draft to the length that
        pays. Waits as `choose_lengths` does."""
        schedules, requested = self.choose_lengths(runner)
        if requested is not None:
            self.state.shorten_drafts(torch.tensor(requested, device=self.state.tokens.device))
            if self.policy.constraints.constrained:
                self.policy.constraints.update(self.state)  # retracts the tokens that were cut
        self.next_schedules, self.chosen = list(schedules), ChosenLengths(schedules, None)
        return self.next_schedules

    @one_at_a_time(of=lambda rows: rows.model)
    @torch.inference_mode()
    def step(self, runner: Runner, schedules: Sequence[RowSchedule], *, is_ahead: bool = False) -> StepOutput:
        """Run one forward pass over `schedules`, and apply its results. `is_ahead`: as in `plan_pass`."""
        with devices.current(self.state.tokens.device):
            return self._step(runner, schedules, is_ahead=is_ahead)

    def _step(self, runner: Runner, schedules: Sequence[RowSchedule], *, is_ahead: bool) -> StepOutput:
        whole_blocks = bool(self.policy.constraints.constrained)
        plan = plan_pass(self.state, schedules, runner, is_ahead=is_ahead, whole_blocks=whole_blocks)
        device = self.state.tokens.device
        has_prompts = any(
            scheduled.is_prefill for scheduled in schedules
        )  # their tokens need other attention, and no outputs
        lengths, is_timed = draft_lengths_of(self.model), not (is_ahead or has_prompts)
        if not is_ahead:
            self.feeds(schedules)
        if is_timed:
            size = _size(plan, schedules, runner)
            lengths.clock.start(device)
        inputs = prepare_inputs(self.state, plan)
        logits, self.next_schedules, self.chosen = runner.logits(inputs), None, None
        step = update(self.state, inputs, logits, self.policy)
        if is_timed:
            for (rows, tokens), seconds in lengths.clock.stop(device, size):
                lengths.times(pass_kind(runner), rows).update(tokens, seconds)
        if runner.most_refed is not None:
            self.state.feed_blocks()
        return step

    def feeds(self, schedules: Sequence[RowSchedule]) -> None:
        """Note what the next pass feeds each row: what it gives says how good the row's drafts are."""
        for row, scheduled in zip(self.drafts, schedules, strict=True):
            if row is not None and checks_draft(scheduled):
                row.fed = scheduled

    def read(
        self, outputs: Sequence[RowOutput | None], state_of: Callable[[], BatchState] | None = None
    ) -> list[RowOutput | None]:
        """Update all rows' constraints by what a pass did to each row, None for rows that were not in it, and return it with
        the ends that they set. `state_of` gives the state, where it is not in this batch."""
        requests = self.state.params.rows
        for each, params in zip(outputs, requests, strict=True):
            assert each is None or each.number <= params.most_passes, "an answer does not end"
        ended = self.policy.constraints.read(outputs, requests, state_of or (lambda: self.state))
        outputs = [
            each.ended(ended[row]) if each is not None and row in ended else each for row, each in enumerate(outputs)
        ]
        before = self.next_schedules
        after = [
            (before[row] if before else None) if each is None else each.scheduled for row, each in enumerate(outputs)
        ]
        known = [each for each in after if each is not None]
        self.next_schedules, self.chosen = known if len(known) == len(after) else None, None
        return outputs

    def generation(self, row: int, *, cancelled: bool = False) -> Generation:
        """Return the answer of a row that is finished or was aborted."""
        self.policy.constraints.update(self.state, [row])
        self.texts[row].read([], final=True)
        params = self.state.params.rows[row]
        settings, start = params.settings, params.prompt_length
        failure = None if cancelled else self.failure(row)
        token_ids = self.state.answer_of(row).tolist()
        is_stopped = any(each.stop_length is not None for each in self.policy.constraints.rows[row].constraints)
        is_ended = any(token_id in params.ends for token_id in token_ids[-1:])
        reason: FinishReason = "stop" if is_stopped or is_ended else "length"
        here, record = (row, slice(start, start + len(token_ids))), self.state.record
        assert record is not None
        return Generation(
            text=self.texts[row].text,
            token_ids=token_ids,
            finish_reason="cancelled" if cancelled else "error" if failure else reason,
            passes=self.state.counts(row),
            revealed_by=record.revealing[here].tolist(),
            entropy=record.entropies[here].tolist(),
            logprobs=None if settings.logprobs is None else self._logprobs(here, alternatives=settings.logprobs),
            seconds=time.perf_counter() - self.started[row],
            method=settings.method,
            error=failure,
            drafted=int(record.drafted[row]),
            accepted=int(record.accepted[row]),
        )

    def _logprobs(self, here: tuple[int, slice], *, alternatives: int) -> list[TokenLogprobs]:
        record, count = self.state.record, min(alternatives, self.model.vocab_size)
        assert record is not None
        columns = (record.logprob[here], record.top_ids[here][:, :count], record.top_logprobs[here][:, :count])
        return [
            TokenLogprobs(logprob, list(zip(ids, values, strict=True)))
            for logprob, ids, values in zip(*(each.tolist() for each in columns), strict=True)
        ]

    def failure(self, row: int) -> Failure | None:
        """Return why a row's answer ended with an error, or None."""
        if not bool(self.state.answer.failed[row]):
            return None
        after = f"after {len(self.state.answer_of(row))} tokens"
        if self.policy.constraints.rows[row].is_stuck:
            message = f"structure leaves no token to choose {after}: the form, or bans and biases with it, allow none"
            return Failure(message, is_of_form=True)
        return Failure(f"the model gave logits that are not numbers {after}", is_of_form=False)


def _size(plan: PassPlan, schedules: Sequence[RowSchedule], runner: Runner) -> tuple[int, int]:
    """Return how many rows take part in a pass without prompts, and how many tokens it computes."""
    fed = [each.tokens + runner.refed(row, each.start) for row, each in enumerate(schedules) if each.tokens]
    if runner.pads:
        return len(fed), runner.computed(len(plan.rows) * max(fed))
    return len(fed), runner.computed(sum(fed))
