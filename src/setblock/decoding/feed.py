"""From the state to what the next pass feeds: the arguments x_<t ; x̂ of eq. 9.

Knows a state's tokens and positions. Knows nothing of models, nor of what is revealed next. Changes nothing, and does not wait
for the device.

The passes of Algorithm 3 are one: what a row feeds is `tokens[committed : end]`, and a token runs causally before
`block_start` and as part of the block after it. Rows of one pass may be at any of them; where many share a machine, a prefill
is cut into several.

    prefill                  committed = 0, end = prefill_end                       the prompt
    block pass               committed = block_start, end = block_end               k tokens
    commit + first pass      committed = previous block's start, end = block_end    2k tokens
    commit                   committed = previous block's start, end = block_start  k tokens, where the runner can't fuse
"""

import torch

from setblock.decoding.plan import PassPlan
from setblock.decoding.state import BatchState
from setblock.model.feed import Feed


def next_feed(state: BatchState, plan: PassPlan) -> Feed:
    """The next pass's inputs, and the outputs at which it is read."""
    # 1. Tokens of the A rows that take part, and what each of them may see
    part, size = plan.part, state.block_width
    end, is_prefill = part.of(plan.end)[:, None], part.of(plan.is_prefill)[:, None]  # [A, 1]
    committed, block_start = part.of(state.committed)[:, None], part.of(state.block_start)[:, None]  # [A, 1]
    positions = committed + torch.arange(plan.queries, device=end.device)  # [A, Q]
    is_real = positions < end
    in_block = is_real & (positions >= block_start)
    limits = torch.where(in_block, end, positions + 1).masked_fill(~is_real, 1)
    safe = positions.masked_fill(~is_real, 0)
    tokens = part.of(state.tokens).gather(1, safe)
    if state.facts is not None:
        column = (positions - block_start).clamp(0, size - 1)
        is_masked = in_block & ~part.of(state.revealed).gather(1, column)
        tokens = tokens.masked_fill(is_masked, state.facts.mask_token_id)

    # 2. The outputs that predict masked tokens of the block and, of exact rows, what is committed
    target = part.of(state.block_positions)  # [A, k]
    source = part.of(state.block_sources)
    wanted = (source < end) & (target < part.of(state.block_end)[:, None]) & ~part.of(state.revealed)
    if plan.checked > 0:
        checked = committed + 1 + torch.arange(plan.checked, device=end.device)  # [A, m]
        is_draft = part.of(state.is_exact)[:, None] & ~is_prefill
        target = torch.cat([target, checked], dim=1)
        source = torch.cat([source, checked - 1], dim=1)
        wanted = torch.cat([wanted, (checked < (end + 1).minimum(block_start)) & is_draft], dim=1)
    # Of a row that takes no part, nothing is wanted; nor anything of one that is fed again what it had to give up.
    wanted &= (end > committed) & ~(is_prefill & part.of(state.prefilled)[:, None])
    return Feed(
        rows=part.rows,
        batch=state.batch,
        tokens=tokens,
        positions=safe,
        ends=end[:, 0],
        is_prefill=is_prefill[:, 0],
        is_real=is_real,
        in_block=in_block,
        limits=limits,
        visible=plan.keys,
        outputs=(source - committed).clamp(0, plan.queries - 1),
        wanted=wanted,
        targets=target,
        is_fixed=plan.is_fixed,
    )
