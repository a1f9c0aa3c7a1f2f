"""The requests that vLLM serves, each in a slot, as rows of the core's batch state.

`prepare` gives the tokens of a pass and where each request's attention changes, and `update` applies the pass's logits. No vLLM
module is imported here, and neither makes the host wait for the device.

vLLM feeds a request the tokens from the first that is not committed on, as many as its scheduler gave it. The first of them
are committed: they run causally. Those after them are its block. What is left over is padding, whose logits nobody reads. A
request's tokens are returned as they are committed, at the end of an answer too.

Shapes: S slots, R requests of a pass, Q the most tokens of a request in it (prompts aside), m its outputs, k the largest block
size, V tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from setblock.decoding.constraints.rows import RowConstraints
from setblock.decoding.settings.resolve import resolved
from setblock.decoding.settings.table import DecodingSettings, RequestParams
from setblock.decoding.state.joining import joined, open_state
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.choice import Policy
from setblock.decoding.step.inputs import prepare_inputs
from setblock.decoding.step.update import update
from setblock.model.protocol.runtime import ModelInput, PassPlan
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock_vllm.parameters import width_of


@dataclass(frozen=True)
class SlotPass:
    """What vLLM feeds R requests in a pass, in vLLM's order unless stated. A request is fed `causal` tokens that are committed,
    then `in_block` tokens of its block, then padding."""

    inputs: ModelInput  # in the order of the state's rows
    rows: Tensor | None  # [R] int64, the place in `inputs` of each request; None if the orders are the same
    fed: Tensor  # [R] int64, tokens of each request
    start: Tensor  # [R] int64, the position of the first
    causal: Tensor  # [R] int64
    in_block: Tensor  # [R] int64
    tokens: Tensor  # [R, Q] int64, except of prompts, which vLLM has; arbitrary past `fed`
    is_prefill: Tensor | None  # [R] bool, requests that are fed a part of their prompt; None if there are none
    outputs: (
        Tensor  # [R, m] int64, of the tokens fed, those whose logits `update` takes; in the order of the state's rows
    )


class BlockSlots:
    """The slots of up to S requests."""

    def __init__(
        self, sbd_config: SBDModelConfig, *, slots: int, block_size: int, vocab_size: int, device: torch.device | str
    ) -> None:
        self.sbd_config, self.vocab_size = sbd_config, vocab_size
        self.width = width_of(block_size)  # the most tokens that a request is fed
        self.device = torch.device(device)
        self.columns = torch.arange(self.width, device=self.device)  # 0, 1, 2, ...
        self._row_of = torch.zeros(slots, dtype=torch.long, device=self.device)  # [S] of the request in each slot
        self._slots: list[int] = []  # of each row
        self._batch: list[tuple[BatchState, Policy]] = []  # of all rows; none where there is no row

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
        self.close(slot)
        # Token ids outside of the vocabulary are dropped here, since the vocabulary is unknown where requests are checked.
        # Drafts are fixed, as the sizes of passes are
        own = range(self.vocab_size)
        bias = {token_id: bias for token_id, bias in settings.logit_bias.items() if token_id in own}
        banned = [token_id for token_id in settings.banned_tokens if token_id in own]
        settings = resolved(replace(settings, logit_bias=bias, banned_tokens=banned, drafts="fixed"), self.sbd_config)
        params = RequestParams(
            settings=settings,
            block_size=settings.block_size or 1,
            prompt_length=prompt_length,
            limit=limit,
            ends=tuple(each for each in ends if each in own),
        )
        state = open_state(
            [written],
            [params],
            sbd_config=self.sbd_config,
            device=self.device,
            records=settings.logprobs is not None,
        )
        state.hold(cached)
        constraints = RowConstraints(
            [each.constraint(params, vocab_size=self.vocab_size) for each in settings.constraints]
        )
        policy = Policy([params], [constraints], vocab_size=self.vocab_size, device=self.device)
        policy.constraints.update(state)
        self._put([_joined([*self._batch, (state, policy)])], [*self._slots, slot])

    @torch.inference_mode()
    def close(self, slot: int) -> None:
        """Free a slot, if it has a request."""
        if slot in self._slots:
            rows = [row for row, each in enumerate(self._slots) if each != slot]
            self._put([_joined(self._batch, rows)] if rows else [], [each for each in self._slots if each != slot])

    def _put(self, batch: list[tuple[BatchState, Policy]], slots: list[int]) -> None:
        self._batch, self._slots = batch, slots
        self._row_of[slots] = torch.arange(len(slots), device=self.device)

    @torch.inference_mode()
    def prepare(self, slots: Tensor, fed: Tensor, *, most: int, has_prompts: bool) -> SlotPass:
        """Return what the next pass feeds the requests in `slots` [R] int64.

        Args:
            slots: in vLLM's order, all of them open.
            fed: [R] how many tokens vLLM feeds each.
            most: Q, the most of these, without those of prompts; at least 1.
            has_prompts: whether any request is fed a part of its prompt.
        """
        ((state, policy),) = self._batch
        rows = self._row_of[slots]
        has_all = len(slots) == state.batch
        # In the order of the state's rows; if not all take part, they are in vLLM's
        fed_rows = torch.empty_like(fed).scatter_(0, rows, fed) if has_all else fed
        whole_blocks = state.params.has_sbd or bool(policy.constraints.constrained)
        width = state.params.block_width if whole_blocks else min(state.params.block_width, most)
        in_order = state.rows if has_all else rows
        plan = self._plan(state, in_order, fed_rows, most=most, width=width, has_prompts=has_prompts)
        inputs = prepare_inputs(state, plan)
        start = plan.of(state.cache.committed)
        causal = (torch.minimum(plan.ends, inputs.block_start) - start).clamp(min=0)
        in_block = plan.ends - start - causal
        tokens = inputs.tokens.where(inputs.is_real, self.sbd_config.mask_token_id or 0)
        outputs = torch.minimum(inputs.outputs, fed_rows[:, None] - 1)
        is_prefill = plan.is_prefill
        if is_prefill is not None:  # the first token of the answer comes after the last of the prompt
            outputs = torch.where(is_prefill[:, None], fed_rows[:, None] - 1, outputs)
        if has_all:
            start, causal, in_block, tokens = (each[rows] for each in (start, causal, in_block, tokens))
            is_prefill = None if is_prefill is None else is_prefill[rows]
        place = rows if has_all else None
        return SlotPass(inputs, place, fed, start, causal, in_block, tokens, is_prefill, outputs)

    @torch.inference_mode()
    def update(self, prepared: SlotPass, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Apply a pass. Return [R, Q] int64 tokens, and [R] int64 how many of them, from the left, the pass has committed; in
        vLLM's order.

        Args:
            prepared: of `prepare`; no slot was opened or closed since.
            logits: [R * m, V], those of `prepared.outputs`. Written to.
        """
        ((state, policy),) = self._batch
        plan, rows = prepared.inputs.plan, prepared.rows
        is_over = _is_over(state, plan)
        update(state, prepared.inputs, logits.view(*prepared.outputs.shape, -1).float(), policy)
        committed, ends = plan.of(state.cache.committed), plan.of(state.params.ends[:, :1])
        whole = plan.of(state.tokens)
        if rows is not None:
            committed, ends, whole, is_over = committed[rows], ends[rows], whole[rows], is_over[rows]
        columns = prepared.start[:, None] + self.columns[: plan.queries]
        tokens = whole.gather(1, columns.clamp(max=whole.shape[1] - 1))
        tokens = torch.where(is_over[:, None], ends.clamp(min=0), tokens)
        count = torch.where(is_over, prepared.fed, committed - prepared.start)
        if prepared.is_prefill is not None:
            count = count.masked_fill(prepared.is_prefill, 0)
        return tokens, count

    @torch.inference_mode()
    def logprobs(self, prepared: SlotPass) -> tuple[Tensor, Tensor, Tensor, Tensor] | None:
        """Return, for the tokens that `update` has returned [R, Q], their log-probabilities and ranks, and the n most likely
        tokens [R, Q, n] with their log-probabilities; None if no request wants any."""
        ((state, _),) = self._batch
        if (record := state.record) is None:
            return None
        plan = prepared.inputs.plan
        columns = (prepared.start[:, None] + self.columns[: plan.queries]).clamp(max=state.tokens.shape[1] - 1)

        def of_pass(whole: Tensor) -> Tensor:
            part = plan.of(whole)
            part = part if prepared.rows is None else part[prepared.rows]
            index = columns if part.dim() == 2 else columns[..., None].expand(-1, -1, part.shape[2])
            return part.gather(1, index)

        return tuple(map(of_pass, (record.logprob, record.rank, record.top_ids, record.top_logprobs)))  # type: ignore[return-value]

    def _plan(
        self, state: BatchState, rows: Tensor, fed: Tensor, *, most: int, width: int, has_prompts: bool
    ) -> PassPlan:
        """Return the plan of a pass in which each request of `rows` [R] is fed at most `fed` [R] tokens. Sizes don't depend on
        values, so that the host never waits for the device."""
        state.may_prefill = has_prompts
        params, committed, start = state.params, state.cache.committed[rows], state.block.start[rows]
        whole = state.next_end(fuses_commit=True, commits_answers=True)[rows]
        ends = torch.minimum(whole, committed + fed)
        if (
            params.has_sbd
        ):  # a block is fed whole, in the next pass, if there is no room for it behind what is committed
            is_part = (ends < whole) & (committed < start) & ~params.is_exact[rows]
            ends = torch.where(is_part, torch.minimum(ends, start), ends)
        return PassPlan(
            rows=rows,
            batch=state.batch,
            ends=ends,
            is_prefill=state.is_prefill[rows] if has_prompts else None,
            queries=most,
            width=width,
            checked=min(params.block_width - 1, most) if params.has_exact else 0,
            visible=state.tokens.shape[1],
            causal_block=self.sbd_config.causal_block,
            may_be_cut=True,
        )


def _joined(parts: Sequence[tuple[BatchState, Policy]], rows: Sequence[int] | None = None) -> tuple[BatchState, Policy]:
    """Return the rows of several parts, or those in `rows`, joined into one part."""
    state = joined([state for state, _ in parts], rows)
    if state.params.num_alternatives is None:
        state.record = None
    return state, Policy.joined([policy for _, policy in parts], state.params, rows)


def _is_over(state: BatchState, plan: PassPlan) -> Tensor:
    """Return [A] bool: requests that vLLM still serves although their whole answer was returned: their logits were NaN."""
    return plan.of(state.answer.finished & (state.cache.committed >= state.answer.end))
