"""The logits of a pass by row and position (ẑ_t..ẑ_{t+k-1} and z_t of eq. 9), and the rules of requests.

The order of the rules is that of Transformers' `generate`: bias, repetition penalty, bans. Temperature, top-k, top-p
and min-p come after, in `choice`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.state import NEVER, NO_TOKEN, BatchState, Columns
from setblock.decoding.step.certainty import Certainty
from setblock.model.protocol.runtime import ModelInput


class MostLikely(NamedTuple):
    """The greatest logits [...] float32 and their tokens [...] int64, the smallest id of a tie."""

    logits: Tensor
    token_ids: Tensor


def most_likely(logits: Tensor, *, in_pieces: bool = False) -> MostLikely:
    """Return the greatest of logits [..., V] and its token. If any logit is NaN, so is the greatest."""
    size = logits.shape[-1]
    if not in_pieces or size < _PIECE or logits.numel() < _FEW * size:
        return MostLikely(*logits.max(dim=-1))
    # On a CPU, `amax` takes a tenth of the time: find the piece with the greatest first, then its place in the piece
    whole = size - size % _PIECE
    greatest = logits[..., :whole].view(*logits.shape[:-1], -1, _PIECE).amax(dim=-1)
    if whole < size:
        greatest = torch.cat([greatest, logits[..., whole:].amax(dim=-1, keepdim=True)], dim=-1)
    first = greatest.argmax(dim=-1, keepdim=True) * _PIECE
    token_ids = (first + torch.arange(_PIECE)).clamp(max=size - 1)
    found = logits.gather(-1, token_ids).max(dim=-1)  # the first of a tie
    return MostLikely(found.values, first[..., 0] + found.indices)


_PIECE, _FEW = 256, 8  # tokens; outputs for which so many operations take longer


class Reading(NamedTuple):
    """What was read of logits [B, m, V]. A kernel reads all of it at once; what is None was not read yet."""

    best: MostLikely
    certainty: Certainty | None = None
    chosen: Tensor | None = None  # [B, m] int64, as `choice.choose_tokens` chooses

    def changed(self, change: Callable[[Tensor], Tensor]) -> "Reading":
        """Return a copy with `change` applied to each tensor."""
        certainty = None if self.certainty is None else Certainty(*map(change, self.certainty))
        chosen = None if self.chosen is None else change(self.chosen)
        return Reading(MostLikely(*map(change, self.best)), certainty, chosen)


Reader = Callable[[Tensor, Tensor], Reading]
"""Reads logits [B, m, V] for positions [B, m]."""


def read_best(logits: Tensor, positions: Tensor) -> Reading:
    """Read the most likely tokens only. It is a `Reader`."""
    return Reading(most_likely(logits))


@dataclass(frozen=True)
class Logits:
    """The logits that a pass gives for some positions of each row."""

    logits: Tensor  # [B, m, V] float32; -inf for the mask token; arbitrary where not known
    positions: Tensor  # [B, m] int64, the absolute positions that they predict
    known: Tensor  # [B, m] bool, where the logits are valid; False where a token is revealed already
    reading: Reading  # at each position, computed once: a vocabulary is long
    # w. The first w positions are those of each row's block (ẑ). The others are drafts that exact rows commit, without
    # the first token of each (z)
    width: int
    reader: Reader = read_best  # for other logits of the same rows

    @property
    def best(self) -> MostLikely:
        """The most likely tokens [B, m]."""
        return self.reading.best

    @property
    def is_finite(self) -> Tensor:
        """Where the logits are finite and leave a token to choose, [B, m] bool."""
        greatest = self.best.logits
        return greatest - greatest == 0  # NaN or infinity minus itself is NaN, not 0

    def with_logits(self, logits: Tensor) -> "Logits":
        """Return a copy with other logits for the same positions."""
        return replace(self, logits=logits, reading=self.reader(logits, self.positions))

    @property
    def block(self) -> "Logits":
        """The logits of the block. None of them are known in a pass that only commits."""
        return self.changed(lambda each: each[:, : self.width], width=self.width)

    @property
    def checked(self) -> "Logits | None":
        """The logits that check drafts; None if no row commits more than its first token."""
        return self.changed(lambda each: each[:, self.width :], width=0) if self.known.shape[1] > self.width else None

    def changed(self, change: Callable[[Tensor], Tensor], *, width: int) -> "Logits":
        """Return a copy with `change` applied to each tensor, and with another `width`."""
        return Logits(
            change(self.logits),
            change(self.positions),
            change(self.known),
            self.reading.changed(change),
            width,
            self.reader,
        )


def read_logits(state: BatchState, inputs: ModelInput, logits: Tensor, reader: Reader = read_best) -> Logits:
    """Return the logits of a pass by row and position, from those of all outputs [A, w + m, V] or of the M wanted ones
    [M, V].

    The state must not have changed since `inputs` were prepared. It keeps the causal logits of a block's first token
    for later passes. `reader`: reads them, and what rules make of them.
    """
    plan, size = inputs.plan, inputs.plan.width
    if state.params.mask_token != NO_TOKEN:
        logits[..., state.params.mask_token].fill_(-torch.inf)  # a mask is never an answer
    best = most_likely(logits, in_pieces=not state.params.waits) if reader is read_best else None
    if logits.dim() == 2:  # of the wanted outputs only
        logits = inputs.spread(logits)
        best = None if best is None else MostLikely(*map(inputs.spread, best))

    # 1. The block's first token may come from a causal logit of an earlier pass, unless all rows take it at once
    block_start = plan.of(state.block.start)
    is_at_once = plan.fuses_commit and not plan.may_be_cut and not state.params.has_sbd
    if state.params.first_is_causal is not None and not is_at_once:
        if state.first_logits.shape[1] == 0:
            state.first_logits = logits.new_zeros((state.batch, logits.shape[-1]))
        fresh = inputs.wanted[:, 0] & (plan.of(state.cache.committed) < block_start)
        first = torch.where(fresh[:, None], logits[:, 0], plan.of(state.first_logits))  # [A, V]
        logits[:, 0] = torch.where(plan.of(state.params.first_is_causal)[:, None], first, logits[:, 0])
        state.first_logits = plan.put(first, state.first_logits)
        if best is not None:
            best.logits[:, 0], best.token_ids[:, 0] = most_likely(logits[:, 0])

    # 2. A pass predicts a block's tokens if it fed the block, and the first one also if it committed all before it
    wanted, target = inputs.wanted, inputs.targets
    # Otherwise all wanted outputs
    if plan.is_prefill is not None or plan.may_be_cut or not plan.fuses_commit or state.params.may_skip_blocks:
        predicts = (plan.ends > block_start) | plan.of(state.is_causal)
        if plan.may_be_cut and plan.fuses_commit:  # in exact rows that token is right, with the block or without it
            predicts = predicts | plan.of(state.params.is_exact)
        if plan.is_prefill is not None:
            predicts = predicts | (plan.is_prefill & (block_start == plan.of(state.params.prompt_length)))
        wanted = wanted & (predicts[:, None] | (state.columns[: wanted.shape[1]] >= size))

    # 3. From the A rows that took part to all B
    logits, target, wanted = (plan.put(each) for each in (logits, target, wanted))
    reading = reader(logits, target) if best is None else Reading(MostLikely(*map(plan.put, best)))
    return Logits(logits, target, wanted, reading, size, reader)


@dataclass(frozen=True)
class LogitRules:
    """The logit rules of a batch. Each is None if no request has it."""

    bias: Tensor | None  # [B, V] float32, added; -inf for banned tokens
    penalty: Tensor | None  # [B] float32, the repetition penalty
    ends: Tensor | None  # [B, V] bool, tokens that end a row's answer
    first_end: Tensor | None  # [B] int64, the first position at which they are allowed

    def apply(self, state: BatchState, given: Logits) -> Logits:
        """Return the logits that tokens are chosen from, given the model's own; the same object without rules."""
        logits, positions = given.logits, given.positions[..., None]
        if self.bias is not None:
            logits = logits + self.bias[:, None]
        if self.penalty is not None:
            penalty, is_seen = self.penalty[:, None, None], _first_seen(state, logits.shape[-1])[:, None] < positions
            penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(is_seen, penalised, logits)
        if self.ends is not None and self.first_end is not None:
            logits = logits.masked_fill((positions < self.first_end[:, None, None]) & self.ends[:, None], -torch.inf)
        return given if logits is given.logits else given.with_logits(logits)


def logit_rules(params: Sequence[RequestParams], columns: Columns, *, vocab_size: int) -> LogitRules:
    """Return the logit rules of a batch of requests."""
    settings, bias, is_end, first_end = [each.settings for each in params], None, None, None
    device = columns.integers.device
    if any(each.logit_bias or each.banned_tokens for each in settings):
        bias = torch.zeros((len(settings), vocab_size))
        for row, each in enumerate(settings):
            for token_id, value in each.logit_bias.items():
                bias[row, token_id] = value
            bias[row, list(each.banned_tokens)] = -torch.inf
        bias = bias.to(device)
    if any(each.min_new_tokens for each in settings):
        is_end = torch.zeros((len(settings), vocab_size), dtype=torch.bool)
        for row, of_row in enumerate(params):
            is_end[row, list(of_row.ends)] = True
        is_end, first_end = is_end.to(device), columns.integer("first_end")
    has_penalty = any(each.repetition_penalty != 1 for each in settings)
    return LogitRules(bias, columns.number("penalty") if has_penalty else None, is_end, first_end)


def _first_seen(state: BatchState, vocab_size: int) -> Tensor:
    """Return [B, V] int64, the position at which each token first occurs. All positions of a block see its revealed
    tokens, except the first position in exact rows, whose token is next-token decoding's."""
    positions, start = state.columns.expand_as(state.tokens), state.block.start[:, None]
    column = (positions - start).clamp(0, state.params.block_width - 1)
    in_block = (positions >= start) & (positions < state.block.end[:, None]) & state.block.revealed.gather(1, column)
    seen_from = start - 1 + state.params.is_exact[:, None].long()
    at = torch.where(positions < start, positions, torch.where(in_block, seen_from, NEVER))
    unseen = torch.full((state.batch, vocab_size), NEVER, device=at.device)
    return unseen.scatter_reduce(1, state.tokens.clamp(min=0), at, "amin")
