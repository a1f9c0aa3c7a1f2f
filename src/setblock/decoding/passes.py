"""One forward pass over a batch state: uncommitted tokens causally, the future block in both directions.

Knows how a state becomes model inputs, and outputs become the block's logits. Knows nothing of what is revealed next.

The three passes of Algorithm 3 are one: what a row feeds is `tokens[committed : end]`, and a token runs causally before
`block_start` and as part of the block after it. Rows of one pass may be at any of them; where many share a machine, a prefill
is cut into several.

    prefill                  committed = 0, end = prefill_end         the prompt
    block pass               committed = block_start                  k tokens
    commit + first pass      committed = previous block's start       2k tokens
"""

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from setblock.decoding.choice import MostLikely, most_likely
from setblock.decoding.feed import Feed, Runner
from setblock.decoding.state import BatchState
from setblock.model.facts import SBDFacts


@dataclass(frozen=True)
class Logits:
    """What a pass says of some positions of each row.

    Attributes:
        logits: [B, m, V] float32; -inf for the mask token. Anything where not known.
        positions: [B, m] int64, the absolute positions they predict.
        known: [B, m] bool, where the logits are valid; nowhere where a token is revealed already.
    """

    logits: Tensor
    positions: Tensor
    known: Tensor

    @cached_property
    def most_likely(self) -> MostLikely:
        """Of each position: three ask for it, and a vocabulary is long."""
        return most_likely(self.logits)


@dataclass(frozen=True)
class PassLogits:
    """What a pass gave.

    Attributes:
        block: of the k positions of each row's block.
        commit: next-token logits of the positions that exact rows committed in this pass, but for each row's first; None where
            no row committed more than that one.
    """

    block: Logits
    commit: Logits | None


def run_pass(runner: Runner, state: BatchState, *, end: Tensor) -> PassLogits:
    """Run the model once and commit the tokens it was fed causally.

    Args:
        end: [B] int64, the position up to which each row is fed; `state.committed` where it does not take part. Less than
            `state.next_end()` in the prefill only, which may be cut into several passes.
    """
    # 1. Inputs: rows that take part (A of them), their tokens and what each of them may see
    facts = runner.model.facts
    is_prefill = state.is_prefill
    shapes = runner.shapes(block_size=state.revealed.shape[1], is_prefill=is_prefill)
    part = _Part(shapes.rows(end > state.committed), batch=state.batch)
    end, is_prefill = part.of(end)[:, None], part.of(is_prefill)[:, None]  # [A, 1]
    committed, block_start = part.of(state.committed)[:, None], part.of(state.block_start)[:, None]  # [A, 1]
    length = shapes.queries(int((end - committed).max()))  # Q
    positions = committed + torch.arange(length, device=end.device)  # [A, Q]
    is_real = positions < end
    in_block = is_real & (positions >= block_start)
    limits = torch.where(in_block, end, positions + 1).masked_fill(~is_real, 1)
    safe = positions.masked_fill(~is_real, 0)
    tokens = part.of(state.tokens).gather(1, safe)
    if facts is not None:
        column = (positions - block_start).clamp(0, shapes.block_size - 1)
        is_masked = in_block & ~part.of(state.revealed).gather(1, column)
        tokens = tokens.masked_fill(is_masked, facts.mask_token_id)

    # 2. Forward, with logits at the outputs that predict masked tokens of the block and, of exact rows, what is committed
    first_is_causal = _first_is_causal(state, part, facts)  # [A], or None where no row's is
    target = part.of(state.block_positions)  # [A, k]
    source = _block_sources(target, first_is_causal, facts)
    known = (source < end) & (target < part.of(state.block_end)[:, None]) & ~part.of(state.revealed)
    size = target.shape[1]
    if state.has_exact:
        is_draft = part.of(state.is_exact)[:, None] & ~is_prefill
        drafted = (block_start - committed - 1).masked_fill(~is_draft, 0)  # [A, 1] tokens to be checked
        count = shapes.checked(max(0, int(drafted.max())))  # m
        if count > 0:
            checked = committed + 1 + torch.arange(count, device=end.device)  # [A, m]
            target = torch.cat([target, checked], dim=1)
            source = torch.cat([source, checked - 1], dim=1)
            known = torch.cat([known, (checked < block_start) & is_draft], dim=1)
    # Of a row that takes no part, nothing is known; nor anything new of one that is fed again what it had to give up.
    known &= (end > committed) & ~(is_prefill & part.of(state.prefilled)[:, None])
    feed = Feed(
        rows=part.rows,
        batch=state.batch,
        tokens=tokens,
        positions=safe,
        is_real=is_real,
        in_block=in_block,
        limits=limits,
        visible=shapes.keys(int(end.max())),
        outputs=(source - committed).clamp(0, length - 1),
        wanted=known,
        is_fixed=shapes.fixed,
    )
    logits = runner.logits(feed)  # [A, k + m, V]
    if facts is not None:
        logits[..., facts.mask_token_id].fill_(-torch.inf)  # a mask is never an answer

    # 3. The block's first token may come from a causal logit of an earlier pass of the same block
    if first_is_causal is not None:
        if state.first_logits is None:
            state.first_logits = logits.new_zeros((state.batch, logits.shape[-1]))
        fresh = known[:, 0] & (committed < block_start)[:, 0]
        first = torch.where(fresh[:, None], logits[:, 0], part.of(state.first_logits))  # [A, V]
        logits[:, 0] = torch.where(first_is_causal[:, None], first, logits[:, 0])
        state.first_logits = part.put(first, state.first_logits)
    state.committed = part.put(torch.minimum(end, block_start)[:, 0], state.committed)
    state.prefilled |= state.committed >= state.prefill_end

    # 4. From the A rows that took part to all B
    logits, target, known = (part.put(each) for each in (logits, target, known))
    block = Logits(logits[:, :size], target[:, :size], known[:, :size])
    if target.shape[1] == size:
        return PassLogits(block, None)
    return PassLogits(block, Logits(logits[:, size:], target[:, size:], known[:, size:]))


class _Part:
    """The A rows of a batch that take part in a pass.

    Args:
        rows: [A] int64, in order.
        batch: B.
    """

    def __init__(self, rows: Tensor, *, batch: int) -> None:
        self.rows, self._batch, self._is_all = rows, batch, len(rows) == batch

    def of(self, whole: Tensor) -> Tensor:
        """[A, ...] of what all rows have [B, ...]; itself where they are all of them."""
        return whole if self._is_all else whole[self.rows]

    def put(self, part: Tensor, whole: Tensor | None = None) -> Tensor:
        """[B, ...] of `part` [A, ...] and, of the other rows, `whole` [B, ...], which may be written to, or zeros."""
        if self._is_all:
            return part
        if whole is None:
            whole = part.new_zeros((self._batch, *part.shape[1:]))
        whole[self.rows] = part
        return whole


def _first_is_causal(state: BatchState, part: _Part, facts: SBDFacts | None) -> Tensor | None:
    """[A] bool, rows whose block's first token is predicted by the last token before the block; None where there is none."""
    if facts is None or facts.first_token_from_causal:
        return torch.ones_like(part.rows, dtype=torch.bool)
    return part.of(state.is_ntp | state.is_exact) if state.has_ntp or state.has_exact else None


def _block_sources(target: Tensor, first_is_causal: Tensor | None, facts: SBDFacts | None) -> Tensor:
    """[A, k] the position whose output predicts each position `target` [A, k] of the block."""
    if facts is None or facts.logit_shift:
        return target - 1
    if first_is_causal is None:
        return target
    source = target.clone()
    source[:, 0] -= first_is_causal.long()
    return source
