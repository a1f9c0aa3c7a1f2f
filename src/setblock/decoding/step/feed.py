"""Build the next pass's feed from the state: the arguments x_<t ; x̂ of eq. 9.

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

from setblock.decoding.state.state import BatchState
from setblock.decoding.state.terms import NO_TOKEN
from setblock.decoding.step.choice import random_tokens
from setblock.model.protocol.feed import Feed, PassPlan


def next_feed(state: BatchState, plan: PassPlan) -> Feed:
    """Return the next pass's inputs, and the outputs at which it is read."""
    # 1. Tokens of the A rows that take part
    end, committed, block_start = (
        each[:, None] for each in (plan.ends, plan.of(state.cache.committed), plan.of(state.block.start))
    )
    positions = committed + state.columns[: plan.queries]  # [A, Q]
    if plan.is_full:
        is_real = state.everybody[: positions.shape[0], None].expand_as(positions)
    else:
        is_real = positions < end
        positions = positions * is_real

    # 2. The outputs that predict masked tokens of the block and, of exact rows, what is committed
    of_block = [plan.of(each) for each in (state.block.positions, state.candidates(), state.terms.shifts)]  # [A, k]
    if plan.width < state.terms.block_width:
        of_block = [each[:, : plan.width] for each in of_block]  # [A, w]
    target, wanted, shift = of_block
    source = target - shift
    if plan.checked > 0:
        checked = committed + state.columns[1 : plan.checked + 1]  # [A, m]
        is_draft = checked < block_start
        if not state.terms.is_all_exact:
            is_draft &= plan.of(state.terms.is_exact)[:, None]
        target, source = torch.cat([target, checked], dim=1), torch.cat([source, checked - 1], dim=1)
        wanted = torch.cat([wanted, is_draft], dim=1)
    wanted = wanted & (source < end)
    if plan.is_prefill is not None:  # of a prompt no draft is checked, nor is anything wanted that was given before
        wanted &= ~(plan.is_prefill & plan.of(state.cache.prefilled))[:, None]
        wanted[:, plan.width :] &= ~plan.is_prefill[:, None]
    tokens = plan.of(state.tokens).gather(1, positions)
    if state.facts is not None and state.facts.noise_vocab_size is not None:  # there is no mask token to feed
        noise = random_tokens(plan.of(state.terms.seeds), positions, vocab_size=state.facts.noise_vocab_size)
        tokens = noise.where(tokens == NO_TOKEN, tokens)
    return Feed(
        plan=plan,
        tokens=tokens,
        positions=positions,
        block_start=block_start[:, 0],
        is_real=is_real,
        outputs=(source - committed).clamp(0, plan.queries - 1),
        wanted=wanted,
        targets=target,
    )
