"""The requests that vLLM serves, each in a slot, as rows of the core's batch state.

`prepare_inputs` gives the tokens of a pass and `update` applies its logits, as everywhere; no vLLM module is imported here.

vLLM has one kind of attention for each request in a pass, causal or not, so commits are separate passes, unless blocks are
causal themselves. Every pass feeds a request the same number of tokens, a block or two, padded if fewer are needed, or fewer
if vLLM's budget is short. A request's tokens are returned as they are committed, at the end of an answer too. Shapes: S slots,
R requests of a pass, k the largest block size, w the most tokens that a request is fed, V tokens.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from setblock.decoding.constraints.constraint import RowConstraints
from setblock.decoding.settings.resolve import resolved
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.state.joining import joined, open_state
from setblock.decoding.state.state import BatchState, RequestParams
from setblock.decoding.step.choice import Policy
from setblock.decoding.step.inputs import prepare_inputs
from setblock.decoding.step.update import update
from setblock.model.protocol.runtime import PassPlan
from setblock.model.protocol.sbd_config import SBDModelConfig
from setblock_vllm.parameters import width_of

NEVER = 2**62  # past all positions


class BlockSlots:
    """The slots of up to S requests."""

    def __init__(
        self, sbd_config: SBDModelConfig, *, slots: int, block_size: int, vocab_size: int, device: torch.device | str
    ) -> None:
        self.sbd_config, self.vocab_size = sbd_config, vocab_size
        self.width = width_of(sbd_config, block_size)  # w
        self.device = torch.device(device)
        # [S] int32, whether the next pass of a request is causal: its prompt's, a commit, or any pass of causal blocks
        self.causal = torch.ones(slots, dtype=torch.int32, device=self.device)
        # [S] int64, the position from which on a request's next pass feeds tokens of a block; NEVER in one without a block
        self.block_starts = torch.full((slots,), NEVER, device=self.device)
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
    ) -> None:
        """Assign a slot to a request whose prompt is about to be fed.

        Args:
            settings: with a block size.
            written: the prompt and, after a preemption, the tokens that were returned before it.
            limit: the position past the last that it may generate.
            ends: token ids that end its answer.
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
        state = open_state([written], [params], sbd_config=self.sbd_config, device=self.device, records=False)
        constraints = RowConstraints(
            [each.constraint(params, vocab_size=self.vocab_size) for each in settings.constraints]
        )
        policy = Policy([params], [constraints], vocab_size=self.vocab_size, device=self.device)
        policy.constraints.update(state)
        self._batch = [_joined([*self._batch, (state, policy)])]
        self._slots.append(slot)
        self.causal[slot] = 1
        self.block_starts[slot] = NEVER

    @torch.inference_mode()
    def close(self, slot: int) -> None:
        """Free a slot, if it has a request."""
        if slot in self._slots:
            rows = [row for row, each in enumerate(self._slots) if each != slot]
            self._slots.remove(slot)
            self._batch = [_joined(self._batch, rows)] if rows else []

    @torch.inference_mode()
    def update(self, slots: Sequence[int], logits: Tensor, *, fed: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Apply a pass to the requests in some slots. Return [R, w] int64 tokens, and [R] int64 how many of them, from the
        left, the pass has committed.

        Args:
            logits: [N, V], the logits of each request's block, request by request; for a prompt that has been fed to its end,
                the last position's.
            fed: [R] the number of rows of `logits` of each request.
        """
        ((state, policy),) = self._batch
        # 1. The tokens that were fed, in the order of rows: all that were planned, or as many as vLLM's budget allowed
        rows, order = self._rows_of(slots).sort()
        of_each = torch.tensor(fed, device=self.device)
        counts, first = of_each[order], (of_each.cumsum(0) - of_each)[order]
        plan = self._plan(state, rows, fed=counts)
        before, was_prefill, is_over = plan.of(state.cache.committed), plan.of(state.is_prefill), _is_over(state, plan)
        inputs = prepare_inputs(state, plan)

        # 2. The update, and the committed tokens
        index = first[:, None] + torch.minimum(inputs.outputs, counts[:, None] - 1)
        update(state, inputs, logits[index].float(), policy)
        count = torch.where(was_prefill, 0, plan.of(state.cache.committed) - before)
        columns = before[:, None] + torch.arange(self.width, device=self.device)
        tokens = plan.of(state.tokens).gather(1, columns.clamp(max=state.tokens.shape[1] - 1))
        tokens = _filled(tokens, state, plan, where=is_over)
        count = torch.where(is_over & ~was_prefill, counts, count)

        # 3. The order of vLLM's requests
        is_causal = state.is_prefill | (state.cache.committed < state.block.start) | state.answer.finished
        is_causal = plan.of(is_causal | self.sbd_config.causal_block)
        here = torch.tensor(slots, device=self.device)[order]
        self.causal[here] = is_causal.to(self.causal.dtype)
        no_block = state.is_prefill | state.answer.finished
        self.block_starts[here] = plan.of(torch.where(no_block, NEVER, state.block.start))
        requested = order.argsort()
        return tokens[requested], count[requested]

    @torch.inference_mode()
    def inputs(self, slots: Sequence[int]) -> Tensor:
        """Return [R, w] the tokens of the next pass of each request: those it commits, then its block's, with the mask token or
        noise where none is revealed. No token attends to the padding behind them."""
        ((state, _),) = self._batch
        plan = self._plan(state, state.rows, fed=torch.full_like(state.rows, self.width))
        inputs = prepare_inputs(state, plan)
        tokens = torch.where(inputs.is_real, inputs.tokens, self.sbd_config.mask_token_id or 0)
        tokens = _filled(tokens, state, plan, where=_is_over(state, plan))
        return tokens[self._rows_of(slots)]

    def _rows_of(self, slots: Sequence[int]) -> Tensor:
        row_of = {slot: row for row, slot in enumerate(self._slots)}
        return torch.tensor([row_of[slot] for slot in slots], device=self.device)

    def _plan(self, state: BatchState, rows: Tensor, *, fed: Tensor) -> PassPlan:
        """Return the plan of a pass in which each request of `rows` [A] is fed at most `fed` [A] tokens, or its prompt to the
        end. Sizes don't depend on values, so that the host never waits for the device."""
        fuses_commit = self.sbd_config.causal_block
        whole = state.next_end(fuses_commit=fuses_commit, commits_answers=True)[rows]
        is_prefill = state.is_prefill[rows]
        return PassPlan(
            rows=rows,
            batch=state.batch,
            ends=torch.where(is_prefill, whole, torch.minimum(whole, state.cache.committed[rows] + fed)),
            is_prefill=is_prefill,
            queries=self.width,
            width=state.params.block_width,
            checked=state.params.block_width - 1 if state.params.has_exact else 0,
            visible=state.tokens.shape[1],
            fuses_commit=fuses_commit,
            causal_block=self.sbd_config.causal_block,
            may_be_cut=True,
            is_fixed=True,
        )


def _joined(parts: Sequence[tuple[BatchState, Policy]], rows: Sequence[int] | None = None) -> tuple[BatchState, Policy]:
    """Return the rows of several parts, or those in `rows`, joined into one part."""
    state = joined([state for state, _ in parts], rows)
    return state, Policy.joined([policy for _, policy in parts], state.params.rows, rows)


def _is_over(state: BatchState, plan: PassPlan) -> Tensor:
    """Return [A] bool: requests that vLLM still serves although their whole answer was returned: their logits were NaN."""
    return plan.of(state.answer.finished & (state.cache.committed >= state.answer.end))


def _filled(tokens: Tensor, state: BatchState, plan: PassPlan, *, where: Tensor) -> Tensor:
    """Return `tokens` [A, w] in which the requests of `where` [A] bool have tokens that end them: an end-of-text token if they
    have any, else any tokens up to the limit."""
    return torch.where(where[:, None], plan.of(state.params.ends[:, :1].clamp(min=0)), tokens)
