"""Read what a pass's logits say of each row (the values ẑ_t..ẑ_{t+k-1} and z_t of eq. 9), and apply what requests ask of them.

Knows which output predicts which position, and one row of rules for each request. The order of rules is that of Transformers'
`generate`: bias, repetition penalty, bans; temperature and the cuts of the distribution come after, in `choice`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from setblock.decoding.state.state import NEVER, NO_TOKEN, BatchState, RequestParams
from setblock.model.protocol.runtime import ModelInput


class MostLikely(NamedTuple):
    """Hold the greatest logits [...] float32 and their tokens [...] int64, the smallest id of a tie."""

    logits: Tensor
    token_ids: Tensor


def most_likely(logits: Tensor, *, in_pieces: bool = False) -> MostLikely:
    """Return the greatest of logits [..., V] and its token. If any of them is not a number, the greatest
    is not one either."""
    size = logits.shape[-1]
    if not in_pieces or torch.compiler.is_compiling() or size < _PIECE or logits.numel() < _FEW * size:
        return MostLikely(*logits.max(dim=-1))
    # On a CPU, `amax` takes a tenth of the time, so first the piece is found that has the greatest, then its place there
    whole = size - size % _PIECE
    greatest = logits[..., :whole].view(*logits.shape[:-1], -1, _PIECE).amax(dim=-1)
    if whole < size:
        greatest = torch.cat([greatest, logits[..., whole:].amax(dim=-1, keepdim=True)], dim=-1)
    first = greatest.argmax(dim=-1, keepdim=True) * _PIECE
    token_ids = (first + torch.arange(_PIECE)).clamp(max=size - 1)
    found = logits.gather(-1, token_ids).max(dim=-1)  # the first of a tie
    return MostLikely(found.values, first[..., 0] + found.indices)


_PIECE, _FEW = 256, 8  # tokens; outputs for which so many operations take longer


@dataclass(frozen=True)
class Logits:
    """Hold what a pass predicts for some positions of each row."""

    logits: Tensor  # [B, m, V] float32; -inf for the mask token. Anything where not known
    positions: Tensor  # [B, m] int64, the absolute positions they predict
    known: Tensor  # [B, m] bool, where the logits are valid; False where a token is revealed already
    best: MostLikely  # the most likely token of each position, found once: a vocabulary is long
    # w. The first w positions are those of each row's block (ẑ), the others drafts that exact rows commit, but the first (z)
    width: int
    branches: "Logits | None" = None  # what branches predict, [B, n c] in place of [B, m]

    @property
    def is_finite(self) -> Tensor:
        """Return [B, m] bool, where the logits are finite and leave a token to choose."""
        greatest = self.best.logits
        return greatest - greatest == 0  # what is no number, or infinite, is not 0 when it is taken from itself

    def with_logits(self, logits: Tensor) -> "Logits":
        """Return the same positions with other logits."""
        return replace(self, logits=logits, best=most_likely(logits))

    @property
    def block(self) -> "Logits":
        """Return the logits of the block. A pass that only commits knows none."""
        return self.changed(lambda each: each[:, : self.width], width=self.width)

    @property
    def checked(self) -> "Logits | None":
        """Return the logits that check drafts; None where no row commits more than its first token."""
        return self.changed(lambda each: each[:, self.width :], width=0) if self.known.shape[1] > self.width else None

    def changed(self, change: Callable[[Tensor], Tensor], *, width: int) -> "Logits":
        """Return what `change` makes of each of their tensors."""
        best = MostLikely(*map(change, self.best))
        return Logits(change(self.logits), change(self.positions), change(self.known), best, width)

    def branch(self, place: Tensor, *, size: int) -> "Logits":
        """Return the logits of one branch of each row, of `size` tokens: of that at `place` [B] of the draft."""
        assert self.branches is not None
        columns = place[:, None] * size + torch.arange(size, device=place.device)
        rows = torch.arange(len(place), device=place.device)[:, None]
        return self.branches.changed(lambda each: each[rows, columns], width=size)

    def with_block(self, rows: Tensor, block: "Logits") -> "Logits":
        """Return them with another block in `rows` [B] bool, of at most w tokens; no more are known of it."""

        def put(whole: Tensor, part: Tensor) -> Tensor:
            first = torch.where(rows.view(-1, *[1] * (whole.dim() - 1)), part, whole[:, : block.width])
            return torch.cat([first, whole[:, block.width :]], dim=1)

        unknown = rows[:, None] & (torch.arange(self.known.shape[1], device=rows.device) < self.width)
        return replace(
            self,
            logits=put(self.logits, block.logits),
            positions=put(self.positions, block.positions),
            known=put(self.known & ~unknown, block.known),
            best=MostLikely(*map(put, self.best, block.best)),
        )


def read_logits(state: BatchState, inputs: ModelInput, logits: Tensor) -> Logits:
    """Return what the logits of a feed predict: all outputs' [A, w + m, V], or those of the M that are wanted [M, V].

    The state, unchanged since the feed was made, keeps the causal logits of a block's first token for later passes.
    """
    plan, size = inputs.plan, inputs.plan.width
    if state.params.mask_token != NO_TOKEN:
        logits[..., state.params.mask_token].fill_(-torch.inf)  # a mask is never an answer
    best = most_likely(logits, in_pieces=not state.params.waits)
    if logits.dim() == 2:  # `best` was found in the wanted ones alone
        logits, best = inputs.spread(logits), MostLikely(inputs.spread(best.logits), inputs.spread(best.token_ids))

    branches, own = None, size + plan.checked
    if plan.branches:
        whole = Logits(logits, inputs.targets, inputs.wanted, best, width=0)
        branches = whole.changed(lambda each: plan.put(each[:, own:]), width=0)
        logits, best = logits[:, :own], MostLikely(*(each[:, :own] for each in best))

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
        best.logits[:, 0], best.token_ids[:, 0] = most_likely(logits[:, 0])

    # 2. A pass predicts a block's tokens if it fed the block, and the first one also if it committed all before it
    wanted, target = inputs.wanted[:, :own], inputs.targets[:, :own]
    if plan.is_prefill is not None or not plan.fuses_commit:  # else all that is wanted
        predicts = (plan.ends > block_start) | plan.of(state.is_causal)
        if plan.is_prefill is not None:
            predicts = predicts | (plan.is_prefill & (block_start == plan.of(state.params.prompt_length)))
        wanted = wanted & (predicts[:, None] | (state.columns[: wanted.shape[1]] >= size))

    # 3. From the A rows that took part to all B
    logits, target, wanted = (plan.put(each) for each in (logits, target, wanted))
    return Logits(logits, target, wanted, MostLikely(*map(plan.put, best)), size, branches)


class Certainty(NamedTuple):
    """Hold how certain a model is of tokens [B, n]: the entropy, in nats, and the probability of the most likely one."""

    entropy: Tensor
    confidence: Tensor


def certainty_of(logits: Tensor, greatest: Tensor, candidates: Tensor, *, in_tiles: bool = True) -> Certainty:
    """Return the certainty of logits [B, k, V] whose greatest values are given. Only candidates have meaningful values.
    `in_tiles`: whether to read a few at a time, which is faster on a CPU and has the host read which."""
    if not in_tiles or torch.compiler.is_compiling():
        probs = logits.softmax(dim=-1)
        return Certainty(torch.special.entr(probs).sum(dim=-1), probs.amax(dim=-1))
    if logits.numel() <= _FEW_NUMBERS:
        found = _tiled_certainty(logits, greatest)
    else:
        # Arithmetic is slow on a CPU, and reading a value is not. The temporaries of a tile stay in the caches. Those of a
        # whole vocabulary would be memory that is asked of the system anew each time, which takes longer than the arithmetic.
        found = Certainty(torch.empty_like(greatest), torch.empty_like(greatest))
        for few in torch.split(candidates.nonzero(), _TILE_ROWS):
            here = few.unbind(dim=1)
            found.entropy[here], found.confidence[here] = _tiled_certainty(logits[here], greatest[here])
    # The rest as if sure, so that they don't depend on how many rows there are
    return Certainty(found.entropy.where(candidates, 0), found.confidence.where(candidates, 1))


def _tiled_certainty(logits: Tensor, greatest: Tensor) -> Certainty:
    """Return the certainty of logits [..., V] whose greatest values are given, reading `_TILE_COLUMNS` tokens at a time. On a
    CPU this takes less time than a pass over all for each operation.

    With d = x - max(x), w = exp(d) and Z = sum(w): H = log Z - sum(w d) / Z, and the most likely token has probability 1 / Z. A
    vocabulary is long, and reading it is most of decoding's own work. So it is read as few times as can be.
    """
    total, product = torch.zeros_like(greatest), torch.zeros_like(greatest)
    for tile in torch.split(logits, _TILE_COLUMNS, dim=-1):
        below = (tile - greatest[..., None]).clamp_(min=_NEVER)
        weights = below.exp()
        total += weights.sum(dim=-1)
        product += below.mul_(weights).sum(dim=-1)
    return Certainty(entropy=total.log() - product / total, confidence=total.reciprocal())


_NEVER = -1e4  # exp of it is 0; of a banned token's -inf, w d would not be a number


_TILE_ROWS, _TILE_COLUMNS = 4, 65536  # a megabyte
_FEW_NUMBERS = _TILE_ROWS * _TILE_COLUMNS  # of a tile: so many are read at once, candidates or not


@dataclass(frozen=True)
class LogitRules:
    """Hold the rules of a batch; each is None where no request of the batch has it."""

    bias: Tensor | None  # [B, V] float32, added; -inf for banned tokens
    penalty: Tensor | None  # [B] float32, the repetition penalty
    ends: Tensor | None  # [B, V] bool, tokens that end a row's answer
    first_end: Tensor | None  # [B] int64, the first position at which they may stand

    def apply(self, state: BatchState, given: Logits) -> Logits:
        """Return the logits that tokens are chosen from, of the model's own; the same object where there are no rules."""
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


def logit_rules(params: Sequence[RequestParams], *, vocab_size: int, device: torch.device) -> LogitRules:
    """Return the rules of a batch of requests."""
    settings, bias, is_end, first_end = [each.settings for each in params], None, None, None
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
        is_end = is_end.to(device)
        first = [each.prompt_length + each.settings.min_new_tokens for each in params]
        first_end = torch.tensor(first, device=device)
    return LogitRules(bias, unless_all([each.repetition_penalty for each in settings], 1.0, device), is_end, first_end)


def unless_all(values: Sequence[float], off: float, device: torch.device) -> Tensor | None:
    """Return the values [B] float32 of rows, or None where all of them are `off`."""
    return None if all(value == off for value in values) else torch.tensor(values, device=device, dtype=torch.float32)


def _first_seen(state: BatchState, vocab_size: int) -> Tensor:
    """Return the position [B, V] at which each token first occurs. Revealed tokens of a block are seen by all of the
    block; but in exact rows not by its first position, where the token is next-token decoding's."""
    positions, start = state.columns.expand_as(state.tokens), state.block.start[:, None]
    column = (positions - start).clamp(0, state.params.block_width - 1)
    in_block = (positions >= start) & (positions < state.block.end[:, None]) & state.block.revealed.gather(1, column)
    seen_from = start - 1 + state.params.is_exact[:, None].long()
    at = torch.where(positions < start, positions, torch.where(in_block, seen_from, NEVER))
    unseen = torch.full((state.batch, vocab_size), NEVER, device=at.device)
    return unseen.scatter_reduce(1, state.tokens.clamp(min=0), at, "amin")
