"""The requests that vLLM serves, each in a slot, which is a row of the core's `StateTable`.

`prepare` gives the tokens of a pass and where each request's attention changes, and `update` applies the pass's logits. No vLLM
module is imported here, and neither makes the host wait for the device. As long as passes feed the same requests, their rows
stay in one `BatchState`. When others take part, it is written back to the table, and theirs is read.

vLLM feeds a request the tokens from the first that is not committed on, as many as its scheduler gave it. The first of them
are committed: they run causally. Those after them are its block. What is left over is padding, whose logits nobody reads. A
request's tokens are returned as they are committed, at the end of an answer too.

Shapes: S slots, R requests of a pass, Q the most tokens of a request in it (prompts aside), n its outputs, m the places that
they predict, k the largest block size, V tokens.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from setblock.decoding.constraints.rows import BatchConstraints, RowConstraints
from setblock.decoding.samplers.base import Memory
from setblock.decoding.settings.resolve import resolved
from setblock.decoding.settings.table import DecodingSettings, RequestParams
from setblock.decoding.state.joining import open_state
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.table import StateTable
from setblock.decoding.step.choice import Policy, StaticSamplers, is_own
from setblock.decoding.step.inputs import prepare_inputs
from setblock.decoding.step.update import update
from setblock.devices import sent
from setblock.engine.captured import Recorder
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.runtime import PassPlan
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock_vllm.captured import CapturedSteps
from setblock_vllm.parameters import width_of
from setblock_vllm.slot_pass import SlotPass


@dataclass
class _Open:
    """What the host knows of a slot's request."""

    params: RequestParams
    constraints: RowConstraints
    memory: Memory  # of its sampler


class BlockSlots:
    """The slots of up to S requests."""

    def __init__(
        self,
        sbd_config: SBDModelConfig,
        *,
        slots: int,
        block_size: int,
        vocab_size: int,
        device: torch.device | str,
        draft_text: DraftText | None = None,
        recorder: Callable[[], Recorder] | None = None,
    ) -> None:
        """Make free slots. With `recorder`, what a pass runs besides the model is captured where it can be."""
        self.sbd_config, self.vocab_size = sbd_config, vocab_size
        self._has_draft_text = draft_text is not None
        self.width = width_of(block_size)  # the most tokens that a request is fed
        self.device = torch.device(device)
        self.columns = torch.arange(self.width, device=self.device)  # 0, 1, 2, ...
        self._table = StateTable(slots, sbd_config=sbd_config, device=self.device, draft_text=draft_text)
        self._open: dict[int, _Open] = {}  # by slot
        # The rows of the requests that take part in passes, in vLLM's order, until others do
        self._slots: list[int] = []
        self._rows = self.columns[:0]  # [R] int64, `_slots`
        self._batch: tuple[BatchState, Policy] | None = None
        self._captured: CapturedSteps | None = None
        if recorder is not None:
            self._captured = CapturedSteps(
                self._table, self._prepared, self._updated, vocab_size=vocab_size, recorder=recorder
            )

    @torch.inference_mode()
    def open(
        self,
        slot: int,
        settings: DecodingSettings,
        *,
        written: Sequence[int],
        prompt_length: int,
        limit: int,
        ends: Sequence[int],
        cached: int = 0,
    ) -> None:
        """Assign a slot to a request whose prompt is about to be fed.

        Args:
            settings: with a block size.
            written: the prompt and, after a preemption, the tokens that were returned before it.
            limit: the position past the last that it may generate.
            ends: token ids that end its answer.
            cached: how many of the first tokens of `written` vLLM's cache has already.
        """
        # Token ids outside of the vocabulary are dropped here, since the vocabulary is unknown where requests are checked.
        # Drafts are fixed, as the sizes of passes are
        own = range(self.vocab_size)
        bias = {token_id: bias for token_id, bias in settings.logit_bias.items() if token_id in own}
        banned = [token_id for token_id in settings.banned_tokens if token_id in own]
        settings = replace(settings, logit_bias=bias, banned_tokens=banned, drafts="fixed")
        settings = resolved(settings, self.sbd_config, has_draft_text=self._has_draft_text)
        params = RequestParams(
            settings=settings,
            block_size=settings.block_size or 1,
            prompt_length=prompt_length,
            limit=limit,
            ends=tuple(each for each in ends if each in own),
        )
        host = torch.device("cpu")
        records = settings.logprobs is not None
        state = open_state([written], [params], sbd_config=self.sbd_config, device=host, records=records)
        state.hold(cached)
        constraints = RowConstraints(
            [each.constraint(params, vocab_size=self.vocab_size) for each in settings.constraints]
        )
        BatchConstraints([constraints]).update(state)
        self._save()
        self._table.write(slot, state)
        self._open[slot] = _Open(params, constraints, {})
        if self._captured is not None:
            self._captured.forget()

    def close(self, slot: int) -> None:
        """Free a slot, if it has a request."""
        self._open.pop(slot, None)

    def _save(self) -> None:
        """Write the rows of the last pass back to the table."""
        if self._batch is not None:
            state, policy = self._batch
            self._table.store(self._rows, state)
            for slot, memory in zip(self._slots, policy.samplers.memories, strict=True):
                if slot in self._open:
                    self._open[slot].memory = memory
        self._batch, self._slots = None, []

    def _batch_of(self, slots: Sequence[int]) -> tuple[BatchState, Policy]:
        """Return the rows of the requests in `slots`."""
        if self._batch is not None and self._slots == [*slots]:
            return self._batch
        self._save()
        requests = [self._open[slot] for slot in slots]
        params = [each.params for each in requests]
        samplers = [each.settings.sampler for each in params]
        different = [each for row, each in enumerate(samplers) if each not in samplers[:row]]
        self._rows, which = sent([slots, [different.index(each) for each in samplers]], self.device)
        records = any(each.settings.logprobs is not None for each in params)
        state = self._table.load(self._rows, params, records=records)
        policy = Policy(
            params,
            [each.constraints for each in requests],
            vocab_size=self.vocab_size,
            device=self.device,
            columns=state.params.columns,
            samplers=StaticSamplers(different, which) if all(map(is_own, different)) else None,
        )
        policy.samplers.memories = [each.memory for each in requests]
        self._slots, self._batch = [*slots], (state, policy)
        return self._batch

    @torch.inference_mode()
    def prepare(self, slots: Sequence[int], fed: Tensor, *, most: int, has_prompts: bool) -> SlotPass:
        """Return what the next pass feeds the requests in `slots`.

        Args:
            slots: in vLLM's order, all of them open.
            fed: [R] how many tokens vLLM feeds each.
            most: Q, the most of these, without those of prompts; at least 1.
            has_prompts: whether any request is fed a part of its prompt.
        """
        requests = [self._open[slot] for slot in slots]
        if (
            self._captured is not None
            and not has_prompts
            and not any(each.constraints.constraints for each in requests)
        ):
            self._save()
            prepared = self._captured.prepare(slots, [each.params for each in requests], fed, most=most)
            if prepared is not None:
                return prepared
        state, policy = self._batch_of(slots)
        is_constrained = bool(policy.constraints.constrained)
        return self._prepared(state, fed, most=most, has_prompts=has_prompts, is_constrained=is_constrained)

    @torch.inference_mode()
    def update(self, prepared: SlotPass, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Apply a pass. Return [R, Q] int64 tokens, and [R] int64 how many of them, from the left, the pass has committed; in
        vLLM's order.

        Args:
            prepared: of `prepare`; no slot was opened or closed since.
            logits: [R * n, V], those of `prepared.outputs`. Written to.
        """
        if self._batch is None:
            assert self._captured is not None
            return self._captured.update(logits)
        return self._updated(*self._batch, prepared, logits)

    def _prepared(
        self, state: BatchState, fed: Tensor, *, most: int, has_prompts: bool = False, is_constrained: bool = False
    ) -> SlotPass:
        """Return what a pass feeds the requests of a state. `is_constrained`: whether any has a form."""
        whole_blocks = state.params.has_sbd or is_constrained
        width = state.params.block_width if whole_blocks else min(state.params.block_width, most)
        plan = self._plan(state, fed, most=most, width=width, has_prompts=has_prompts)
        inputs = prepare_inputs(state, plan)
        start = state.cache.committed
        causal = (torch.minimum(plan.ends, inputs.block_start) - start).clamp(min=0)
        tokens = inputs.tokens.where(inputs.is_real, self.sbd_config.mask_token_id or 0)
        outputs, index = torch.minimum(inputs.outputs, fed[:, None] - 1), None
        if outputs.shape[1] > most:  # an output may check a draft and predict a block's token: each is computed once
            outputs, index = torch.minimum(self.columns[:most], fed[:, None] - 1), outputs.clamp(0, most - 1)
        if plan.is_prefill is not None:  # the first token of the answer comes after the last of the prompt
            outputs = torch.where(plan.is_prefill[:, None], fed[:, None] - 1, outputs)
        in_block = plan.ends - start - causal
        return SlotPass(inputs, fed, start, causal, in_block, tokens, plan.is_prefill, outputs, index)

    def _updated(self, state: BatchState, policy: Policy, prepared: SlotPass, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Apply a pass to the requests of a state. Return what `update` does."""
        plan, answer = prepared.inputs.plan, state.answer
        # Requests that vLLM still serves although their whole answer was returned: their logits were NaN
        is_over = answer.finished & (state.cache.committed >= answer.end)
        if prepared.index is not None:
            first = plan.rows[:, None] * prepared.outputs.shape[1]
            logits = logits.index_select(0, (first + prepared.index).flatten())
        update(state, prepared.inputs, logits.view(state.rows.shape[0], -1, logits.shape[-1]).float(), policy)
        columns = prepared.start[:, None] + self.columns[: plan.queries]
        tokens = state.tokens.gather(1, columns.clamp(max=state.tokens.shape[1] - 1))
        tokens = torch.where(is_over[:, None], state.params.ends[:, :1].clamp(min=0), tokens)
        count = torch.where(is_over, prepared.fed, state.cache.committed - prepared.start)
        if prepared.is_prefill is not None:
            count = count.masked_fill(prepared.is_prefill, 0)
        return tokens, count

    @torch.inference_mode()
    def logprobs(self, prepared: SlotPass) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Return, for the tokens that `update` has returned [R, Q], their log-probabilities and ranks, and the n most likely
        tokens [R, Q, n] with their log-probabilities; None if no request wants any."""
        record = None if self._batch is None else self._batch[0].record
        if record is None:
            return None
        columns = (prepared.start[:, None] + self.columns[: prepared.inputs.plan.queries]).clamp(
            max=record.logprob.shape[1] - 1
        )

        def of_pass(whole: Tensor) -> Tensor:
            index = columns if whole.dim() == 2 else columns[..., None].expand(-1, -1, whole.shape[2])
            return whole.gather(1, index)

        return tuple(map(of_pass, (record.logprob, record.rank, record.top_ids, record.top_logprobs)))  # type: ignore[return-value]

    def _plan(self, state: BatchState, fed: Tensor, *, most: int, width: int, has_prompts: bool) -> PassPlan:
        """Return the plan of a pass in which each request is fed at most `fed` [R] tokens. Sizes don't depend on values, so
        that the host never waits for the device."""
        state.may_prefill = has_prompts
        params, committed, start = state.params, state.cache.committed, state.block.start
        whole = state.next_end(fuses_commit=True, commits_answers=True)
        ends = torch.minimum(whole, committed + fed)
        if params.has_sbd:
            # A block is fed whole, in the next pass, if there is no room for it behind what is committed
            is_part = (ends < whole) & (committed < start) & ~params.is_exact
            ends = torch.where(is_part, torch.minimum(ends, start), ends)
        return PassPlan(
            rows=state.rows,
            batch=state.batch,
            ends=ends,
            is_prefill=state.is_prefill if has_prompts else None,
            queries=most,
            width=width,
            checked=min(params.block_width - 1, most) if params.has_exact else 0,
            visible=state.tokens.shape[1],
            causal_block=self.sbd_config.causal_block,
            may_be_cut=True,
        )
