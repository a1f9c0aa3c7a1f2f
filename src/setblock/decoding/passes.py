"""One forward pass over a batch state: uncommitted tokens causally, the future block in both directions.

Knows how a state becomes model inputs, and outputs become the block's logits. Knows nothing of what is revealed next.

The three passes of Algorithm 3 are one: what a row feeds is `tokens[committed : end]`, and a token runs causally before
`block_start` and as part of the block after it.

    prefill                  committed = 0, end = block_start         the prompt
    block pass               committed = block_start                  k tokens
    commit + first pass      committed = previous block's start       2k tokens
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.state import BatchState
from setblock.masks import decode_mask
from setblock.model.attention import attention_mask
from setblock.model.cache import SlotCache
from setblock.model.facts import SBDFacts
from setblock.model.forward import logits_at
from setblock.model.sbd_model import SBDModel


@dataclass(frozen=True)
class BlockLogits:
    """What a pass says of each row's block.

    Attributes:
        logits: [B, k, V] float32; rows and positions that the pass did not reach hold anything.
        known: [B, k] bool, where the logits are valid.
    """

    logits: Tensor
    known: Tensor


def run_pass(model: SBDModel, state: BatchState, cache: SlotCache, *, prefill: bool) -> BlockLogits:
    """Run the model once over every unfinished row and commit the tokens it was fed causally.

    Args:
        prefill: feed the uncommitted tokens only, not the block.
    """
    # 1. Inputs: rows that take part (A of them), their tokens and what each of them may see
    facts = model.facts
    rows = (~state.finished).nonzero()[:, 0]  # [A]
    committed, block_start = state.committed[rows, None], state.block_start[rows, None]  # [A, 1]
    end = block_start if prefill else state.block_end[rows, None]
    end = torch.where(state.is_ntp[rows, None], block_start, end)
    length = int((end - committed).max())  # Q
    positions = committed + torch.arange(length, device=rows.device)  # [A, Q]
    is_real = positions < end
    in_block = is_real & (positions >= block_start)
    limits = torch.where(in_block, end, positions + 1).masked_fill(~is_real, 1)
    safe = positions.masked_fill(~is_real, 0)
    tokens = state.tokens[rows].gather(1, safe)
    if facts is not None:
        column = (positions - block_start).clamp(0, state.revealed.shape[1] - 1)
        is_masked = in_block & ~state.revealed[rows].gather(1, column)
        tokens = tokens.masked_fill(is_masked, facts.mask_token_id)

    # 2. Forward, with logits at the k outputs that predict the block
    wanted, known = _outputs_for_block(state, rows, facts, fed=end)
    visible = int(end.max())
    everyone = len(rows) == state.batch
    cache.write_to(
        rows=None if everyone else rows,
        slots=positions.masked_fill(~is_real, cache.layers[0].get_max_length()),
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
    logits = logits_at(
        model.model,
        (offset + (wanted - committed).clamp(0, length - 1)).flatten(),
        input_ids=tokens,
        position_ids=safe,
        attention_mask=mask,
        cache=cache,
    ).float()  # [A * k, V]
    logits = logits.view(*wanted.shape, -1)  # [A, k, V]
    if facts is not None:
        logits[..., facts.mask_token_id] = -torch.inf  # a mask is never an answer

    # 3. The block's first token may come from a causal logit of an earlier pass of the same block
    if state.first_logits is None:
        state.first_logits = logits.new_zeros((state.batch, logits.shape[-1]))
    if _first_is_causal(facts):
        fresh = (committed < block_start)[:, 0]
        state.first_logits[rows[fresh]] = logits[fresh, 0]
        logits[:, 0] = state.first_logits[rows]
    state.committed[rows] = state.block_start[rows]
    return _spread(logits, known, rows, state)


def _first_is_causal(facts: SBDFacts | None) -> bool:
    return facts is None or facts.first_token_from_causal


def _outputs_for_block(
    state: BatchState, rows: Tensor, facts: SBDFacts | None, *, fed: Tensor
) -> tuple[Tensor, Tensor]:
    """[A, k] the position whose output predicts each position of the block, and whether it is known after this pass."""
    target = state.block_positions[rows]
    is_ntp, is_first = state.is_ntp[rows, None], target == state.block_start[rows, None]
    shifted = is_ntp | (is_first & _first_is_causal(facts))
    if facts is not None and facts.logit_shift:
        shifted = torch.ones_like(target, dtype=torch.bool)
    source = target - shifted.long()
    return source, (source < fed) & (target < state.block_end[rows, None])


def _spread(logits: Tensor, known: Tensor, rows: Tensor, state: BatchState) -> BlockLogits:
    """From the A rows that took part to all B."""
    if len(rows) == state.batch:
        return BlockLogits(logits, known)
    all_logits = logits.new_zeros((state.batch, *logits.shape[1:]))
    all_known = known.new_zeros((state.batch, known.shape[1]))
    all_logits[rows], all_known[rows] = logits, known
    return BlockLogits(all_logits, all_known)
