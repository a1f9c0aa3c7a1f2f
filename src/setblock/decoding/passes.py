"""One forward pass over a batch state: uncommitted tokens causally, the future block in both directions.

Knows how a state becomes model inputs, and outputs become the block's logits. Knows nothing of what is revealed next.

The three passes of Algorithm 3 are one: what a row feeds is `tokens[committed : end]`, and a token runs causally before
`block_start` and as part of the block after it.

    prefill                  committed = 0, end = block_start         the prompt
    block pass               committed = block_start                  k tokens
    commit + first pass      committed = previous block's start       2k tokens
"""

from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from setblock.decoding.shapes import PassShapes
from setblock.decoding.state import BatchState
from setblock.masks import decode_mask
from setblock.model.attention import attention_mask
from setblock.model.cache import SlotCache
from setblock.model.facts import SBDFacts
from setblock.model.forward import logits_at
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class Logits:
    """What a pass says of some positions of each row.

    Attributes:
        logits: [B, m, V] float32; -inf for the mask token. Anything where not known.
        positions: [B, m] int64, the absolute positions they predict.
        known: [B, m] bool, where the logits are valid.
    """

    logits: Tensor
    positions: Tensor
    known: Tensor


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


def run_pass(model: SBDModel, state: BatchState, cache: SlotCache, *, prefill: bool) -> PassLogits:
    """Run the model once over every unfinished row and commit the tokens it was fed causally.

    Args:
        prefill: feed the uncommitted tokens only, not the block.
    """
    # 1. Inputs: rows that take part (A of them), their tokens and what each of them may see
    facts = model.facts
    compiled = None if prefill else model.compiled  # prompts have lengths of all kinds
    shapes = PassShapes(fixed=compiled is not None, block_size=state.revealed.shape[1], capacity=cache.capacity)
    rows = shapes.rows(~state.finished)  # [A]
    takes_part = ~state.finished[rows, None]  # [A, 1]; a finished row is fed padding
    committed, block_start = state.committed[rows, None], state.block_start[rows, None]  # [A, 1]
    end = block_start if prefill else state.block_end[rows, None]
    end = torch.where(state.is_ntp[rows, None], block_start, end)
    end = torch.where(takes_part, end, committed)
    length = shapes.queries(int((end - committed).max()))  # Q
    positions = committed + torch.arange(length, device=rows.device)  # [A, Q]
    is_real = positions < end
    in_block = is_real & (positions >= block_start)
    limits = torch.where(in_block, end, positions + 1).masked_fill(~is_real, 1)
    safe = positions.masked_fill(~is_real, 0)
    tokens = state.tokens[rows].gather(1, safe)
    if facts is not None:
        column = (positions - block_start).clamp(0, shapes.block_size - 1)
        is_masked = in_block & ~state.revealed[rows].gather(1, column)
        tokens = tokens.masked_fill(is_masked, facts.mask_token_id)

    # 2. Forward, with logits at the outputs that predict the block and, of exact rows, the tokens that are committed
    target, source, known = _block_outputs(state, rows, facts, fed=end)  # [A, k]
    size = target.shape[1]
    if not prefill:
        checked, to_check = _commit_outputs(state, rows, shapes)  # [A, m]
        target, known = torch.cat([target, checked], dim=1), torch.cat([known, to_check], dim=1)
        source = torch.cat([source, checked - 1], dim=1)
    known &= takes_part
    visible = shapes.keys(int(end.max()))
    everyone = len(rows) == state.batch
    cache.write_to(
        rows=None if everyone else rows,
        slots=positions.masked_fill(~is_real, cache.capacity),
        visible=visible,
    )
    mask = attention_mask(
        model.model.config.get_text_config(),
        lambda window: decode_mask(position_ids=safe, limits=limits, window=window),
        batch=len(rows),
        queries=length,
        keys=visible,
        device=model.device,
        dtype=model.model.dtype,
    )
    offset = torch.arange(len(rows), device=rows.device)[:, None] * length
    outputs = (offset + (source - committed).clamp(0, length - 1)).flatten()
    forward = compiled.logits_at if compiled else partial(logits_at, model.model)
    with model.block_only(in_block):
        logits = forward(outputs, input_ids=tokens, position_ids=safe, attention_mask=mask, cache=cache).float()
    logits = logits.view(*target.shape, -1)  # [A, k + m, V]
    if facts is not None:
        logits[..., facts.mask_token_id] = -torch.inf  # a mask is never an answer

    # 3. The block's first token may come from a causal logit of an earlier pass of the same block
    if state.first_logits is None:
        state.first_logits = logits.new_zeros((state.batch, logits.shape[-1]))
    first_is_causal = _first_is_causal(state, rows, facts)
    fresh = first_is_causal & (committed < block_start)[:, 0]
    state.first_logits[rows[fresh]] = logits[fresh, 0]
    logits[first_is_causal, 0] = state.first_logits[rows[first_is_causal]]
    state.committed[rows] = state.block_start[rows]

    # 4. From the A rows that took part to all B
    logits, target, known = (_spread(each, rows, state.batch) for each in (logits, target, known))
    block = Logits(logits[:, :size], target[:, :size], known[:, :size])
    if target.shape[1] == size:
        return PassLogits(block, None)
    return PassLogits(block, Logits(logits[:, size:], target[:, size:], known[:, size:]))


def _first_is_causal(state: BatchState, rows: Tensor, facts: SBDFacts | None) -> Tensor:
    """[A] bool, rows whose block's first token is predicted by the last token before the block."""
    if facts is None or facts.first_token_from_causal:
        return torch.ones_like(rows, dtype=torch.bool)
    return state.is_ntp[rows] | state.is_exact[rows]


def _block_outputs(
    state: BatchState, rows: Tensor, facts: SBDFacts | None, *, fed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """[A, k] each position of the block, the position whose output predicts it, and whether this pass reaches that."""
    target = state.block_positions[rows]
    is_first = target == state.block_start[rows, None]
    shifted = is_first & _first_is_causal(state, rows, facts)[:, None]
    if facts is None or facts.logit_shift:
        shifted = torch.ones_like(shifted)
    source = target - shifted.long()
    return target, source, (source < fed) & (target < state.block_end[rows, None])


def _commit_outputs(state: BatchState, rows: Tensor, shapes: PassShapes) -> tuple[Tensor, Tensor]:
    """[A, m] positions after the first of what is committed, and which of them are of exact rows and so to be checked."""
    committed, block_start = state.committed[rows, None], state.block_start[rows, None]
    drafted = (block_start - committed - 1).masked_fill(~state.is_exact[rows, None], 0)
    count = shapes.checked(int(drafted.max().clamp(min=0)))
    target = committed + 1 + torch.arange(count, device=rows.device)
    return target, (target < block_start) & state.is_exact[rows, None]


def _spread(part: Tensor, rows: Tensor, batch: int) -> Tensor:
    """[A, ...] of the rows that took part to [B, ...]."""
    if len(rows) == batch:
        return part
    whole = part.new_zeros((batch, *part.shape[1:]))
    whole[rows] = part
    return whole
