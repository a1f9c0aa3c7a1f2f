"""What the slots run in a pass besides the model, captured as two CUDA graphs: one before the model, which prepares its inputs,
and one after it, which applies the logits. Each reads the rows of its requests from the table, and the second writes them back.

Sizes are powers of two, R requests of Q tokens, and are captured when they are first needed. Not captured, and run as any other
pass: those with prompts, and those whose requests have a form, log-probabilities, biases, bans, a least number of new tokens or
samplers of others.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from setblock.decoding.constraints.rows import RowConstraints
from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.table import StateTable
from setblock.decoding.step.choice import Policy, StaticSamplers
from setblock.devices import sent
from setblock.engine.captured import MOST_CAPTURED, PassTraits, Recorder, recorded, traits_of
from setblock.errors import SetBlockError, warn
from setblock.model.protocol.runtime import next_power_of_two
from setblock_vllm.slot_pass import SlotPass


@dataclass
class CapturedStep:
    """The two graphs of a size."""

    traits: PassTraits
    requests: Sequence[RequestParams]  # R
    given: Tensor  # [3, R] int64: rows of the table, which sampler each has, and the tokens that it is fed
    before: Recorder | None = None
    prepared: SlotPass | None = None
    after: Recorder | None = None
    logits: Tensor | None = None  # [R * n, V]
    result: tuple[Tensor, Tensor] | None = None


class CapturedSteps:
    """The captured steps of the slots.

    Attributes:
        reason: why steps are not captured any more, or None.
    """

    def __init__(
        self,
        table: StateTable,
        prepare: Callable[..., SlotPass],
        update: Callable[[BatchState, Policy, SlotPass, Tensor], tuple[Tensor, Tensor]],
        *,
        vocab_size: int,
        recorder: Callable[[], Recorder],
    ) -> None:
        """Capture nothing yet. `prepare` and `update` are those of `BlockSlots`, for the requests of a state."""
        self._table, self._prepare, self._update = table, prepare, update
        self._vocab_size, self._recorder = vocab_size, recorder
        self._captured: dict[tuple[int, int, PassTraits], CapturedStep] = {}
        self._version = table.version
        self._rows: tuple[Sequence[int], Tensor, PassTraits | None] | None = None  # of the last pass
        self._current: CapturedStep | None = None
        self._count = self._most = 0  # requests of the pass, and tokens of each
        self.reason: str | None = None

    def prepare(
        self, slots: Sequence[int], requests: Sequence[RequestParams], fed: Tensor, *, most: int
    ) -> SlotPass | None:
        """Return what the next pass feeds the requests in `slots`, or None if it is not captured. Arguments are those of
        `BlockSlots.prepare`."""
        self._current = None
        if self.reason is not None:
            return None
        if self._version != self._table.version:  # addresses have changed
            self._captured, self._version = {}, self._table.version
        size = next_power_of_two(len(slots))
        if self._rows is None or self._rows[0] != [*slots]:
            self._rows = [*slots], *self._given(slots, requests, size)
        _, rows, traits = self._rows
        if traits is None:
            return None
        key = size, next_power_of_two(most), traits
        step = self._captured.get(key)
        if step is None:
            if len(self._captured) >= MOST_CAPTURED:
                del self._captured[next(iter(self._captured))]
            filled = [*requests, *[requests[0]] * (size - len(requests))]
            step = self._captured[key] = CapturedStep(traits, filled, rows.new_zeros((3, size)))
        step.given[:2].copy_(rows)
        step.given[2, : len(slots)].copy_(fed)
        if step.before is None:
            recorder = self._recorder()
            try:
                prepared, _ = recorded(lambda: self._prepared(step, key[1]), recorder, self._table, values=_tensors_of)
            except (RuntimeError, SetBlockError) as error:
                self._give_up(error)
                return None
            step.before, step.prepared = recorder, prepared
        else:
            step.before.replay()
        assert step.prepared is not None
        self._current, self._count, self._most = step, len(slots), most
        return _first(step.prepared, len(slots))

    def update(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Apply the logits of the pass that `prepare` has given. Return what `BlockSlots.update` does."""
        step = self._current
        assert step is not None and step.prepared is not None
        if step.logits is None:
            rows = len(step.given[0]) * step.prepared.outputs.shape[1]
            step.logits = logits.new_zeros((rows, logits.shape[1]))
        step.logits[: len(logits)].copy_(logits)
        if step.after is None:
            recorder = self._recorder()
            try:
                result, _ = recorded(lambda: self._updated(step), recorder, self._table, values=_both)
                step.after, step.result = recorder, result
            except (RuntimeError, SetBlockError) as error:
                self._give_up(error)
                step.result = self._updated(step)
        else:
            step.after.replay()
        assert step.result is not None
        tokens, committed = step.result
        return tokens[: self._count, : self._most], committed[: self._count]

    def forget(self) -> None:
        """Forget which requests took part in the last pass: others may be in their slots."""
        self._rows = None

    def _given(
        self, slots: Sequence[int], requests: Sequence[RequestParams], size: int
    ) -> tuple[Tensor, PassTraits | None]:
        if (traits := traits_of(requests)) is None:
            return self._table_rows([[]] * 2), None
        filling = size - len(slots)
        which = [traits.samplers.index(each.settings.sampler) for each in requests]
        return self._table_rows([[*slots, *[self._table.vacant] * filling], [*which, *[0] * filling]]), traits

    def _table_rows(self, numbers: Sequence[Sequence[int]]) -> Tensor:
        return sent(numbers, self._table.device)

    def _state(self, step: CapturedStep) -> tuple[BatchState, Policy]:
        rows, which, _ = step.given
        state = self._table.load(rows, step.requests, may_prefill=False, records=False)
        policy = Policy(
            step.requests,
            [RowConstraints(())] * len(step.requests),
            vocab_size=self._vocab_size,
            device=self._table.device,
            columns=state.params.columns,
            samplers=StaticSamplers(step.traits.samplers, which),
        )
        return state, policy

    def _prepared(self, step: CapturedStep, most: int) -> SlotPass:
        return self._prepare(self._state(step)[0], step.given[2], most=most)

    def _updated(self, step: CapturedStep) -> tuple[Tensor, Tensor]:
        assert step.prepared is not None and step.logits is not None
        state, policy = self._state(step)
        # The update writes to its logits, and this may run more than once
        result = self._update(state, policy, step.prepared, step.logits.to(torch.float32, copy=True))
        self._table.store(step.given[0], state)
        return result

    def _give_up(self, error: Exception) -> None:
        self.reason = str(error).strip().splitlines()[0]
        warn(f"steps are not captured, but launched one operation after the other: {self.reason}")


def _tensors_of(prepared: SlotPass) -> list[Tensor]:
    return [prepared.start, prepared.causal, prepared.in_block, prepared.tokens, prepared.outputs]


def _both(result: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
    return result


def _first(prepared: SlotPass, count: int) -> SlotPass:
    """Return a pass of the first `count` requests, for vLLM."""
    names = ("fed", "start", "causal", "in_block", "tokens", "outputs")
    return replace(prepared, **{name: getattr(prepared, name)[:count] for name in names})
