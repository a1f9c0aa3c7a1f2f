"""Keep the requests that vLLM serves, each in a slot, as rows of the core's state.

Knows which row each slot has, and how vLLM's passes are cut. Knows nothing of vLLM itself, nor of models: it is given logits.
What a pass feeds and what follows from it are `prepare_inputs` and `update`, as everywhere.

vLLM has one kind of attention for each request in a pass, causal or not, so commits are separate passes; but not where blocks
are causal themselves. It feeds as much each time, a block or two, some of it at random where less is wanted, or less where its
budget is short. A request's tokens are handed over as they are committed, at the end of an answer too. Shapes: S slots, R
requests of a pass, k the largest block size, w the most tokens that a request is fed, V tokens.
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
from setblock.integrations.vllm.parameters import width_of
from setblock.model.protocol.runtime import PassPlan
from setblock.model.protocol.sbd_config import SBDModelConfig


class BlockSlots:
    """Keep up to S requests."""

    def __init__(
        self, sbd_config: SBDModelConfig, *, slots: int, block_size: int, vocab_size: int, device: torch.device | str
    ) -> None:
        self.sbd_config, self.vocab_size = sbd_config, vocab_size
        self.width = width_of(sbd_config, block_size)  # w
        self.device = torch.device(device)
        # [S] int32, whether the next pass of a request is causal: its prompt's or a commit, or any of causal blocks
        self.causal = torch.ones(slots, dtype=torch.int32, device=self.device)
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
        """Give a slot to a request whose prompt is about to be fed.

        Args:
            settings: with a block size.
            written: the prompt and, after an interruption, what was handed over.
            limit: the position past the last that it may generate.
            ends: token ids that end its answer.
        """
        self.close(slot)
        # Without token ids that the model lacks, which it can't write anyway: where requests are checked, its vocabulary is not
        # known. Drafts are fixed, as the sizes of passes are
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

    @torch.inference_mode()
    def close(self, slot: int) -> None:
        """Take a request out of its slot, if there is one."""
        if slot in self._slots:
            rows = [row for row, each in enumerate(self._slots) if each != slot]
            self._slots.remove(slot)
            self._batch = [_joined(self._batch, rows)] if rows else []

    @torch.inference_mode()
    def update(self, slots: Sequence[int], logits: Tensor, *, fed: Sequence[int]) -> tuple[Tensor, Tensor]:
        """Apply a pass to the requests in some slots. Return [R, w] int64 tokens, and [R] int64 how many of them, from the
        left, the pass has committed.

        Args:
            logits: [N, V], the model's outputs along each request's block, one request behind the other; of a prompt that has
                been fed to its end, the last one.
            fed: [R] how many of them each request has.
        """
        ((state, policy),) = self._batch
        # 1. What was fed, in the order of rows: as much as was to be, or as vLLM's budget let through
        rows, order = self._rows_of(slots).sort()
        of_each = torch.tensor(fed, device=self.device)
        counts, first = of_each[order], (of_each.cumsum(0) - of_each)[order]
        plan = self._plan(state, rows, fed=counts)
        before, was_prefill, is_over = plan.of(state.cache.committed), plan.of(state.is_prefill), _is_over(state, plan)
        inputs = prepare_inputs(state, plan)

        # 2. What follows from it, and what is handed over
        index = first[:, None] + torch.minimum(inputs.outputs, counts[:, None] - 1)
        update(state, inputs, logits[index].float(), policy)
        count = torch.where(was_prefill, 0, plan.of(state.cache.committed) - before)
        columns = before[:, None] + torch.arange(self.width, device=self.device)
        tokens = plan.of(state.tokens).gather(1, columns.clamp(max=state.tokens.shape[1] - 1))
        tokens = _filled(tokens, state, plan, where=is_over)
        count = torch.where(is_over & ~was_prefill, counts, count)

        # 3. As vLLM has ordered them
        is_causal = state.is_prefill | (state.cache.committed < state.block.start) | state.answer.finished
        is_causal = plan.of(is_causal | self.sbd_config.causal_block)
        self.causal[torch.tensor(slots, device=self.device)[order]] = is_causal.to(self.causal.dtype)
        requested = order.argsort()
        return tokens[requested], count[requested]

    @torch.inference_mode()
    def inputs(self, slots: Sequence[int]) -> Tensor:
        """Return [R, w] what the next pass of each request is fed: what it commits and its block's tokens, and the mask
        token or noise where none is revealed. What is behind them nobody sees."""
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
        """Return a pass in which each request of `rows` [A] is fed at most `fed` [A] tokens, or its prompt to the end. Sizes
        don't depend on values, so that nothing waits for the device."""
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
    """Return the rows of several parts in one, or `rows` of all these."""
    state = joined([state for state, _ in parts], rows)
    return state, Policy.joined([policy for _, policy in parts], state.params.rows, rows)


def _is_over(state: BatchState, plan: PassPlan) -> Tensor:
    """Return [A] bool, requests whose answer has ended and was handed over, and which vLLM still serves: their logits were
    no numbers."""
    return plan.of(state.answer.finished & (state.cache.committed >= state.answer.end))


def _filled(tokens: Tensor, state: BatchState, plan: PassPlan, *, where: Tensor) -> Tensor:
    """Return `tokens` [A, w] with what such requests, `where` [A] bool, are given, so that they end: an end-of-text if there is
    any, and anything up to the limit if not."""
    return torch.where(where[:, None], plan.of(state.params.ends[:, :1].clamp(min=0)), tokens)
