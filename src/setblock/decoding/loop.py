"""A step of decoding: Algorithms 2 and 3 of the paper over a batch of independent rows.

    while rows are not finished:
        feed = next_feed(state, plan)                    x_<t ; x̂                  feed.py
        logits = runner.logits(feed)                     ẑ, z            eq. 9     whoever holds a model
        step = absorb(state, feed, logits, policy)       reveal some     eq. 8     here

Knows the order of things: check what was committed, reveal what the sampler says, then the next block; rows may be anywhere in
it. Knows nothing of models or text.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from setblock.decoding.choice import choose_tokens
from setblock.decoding.exact import Check, check_drafts
from setblock.decoding.guidance import guided_block, guided_commit, guided_copies
from setblock.decoding.logits import first_seen
from setblock.decoding.lookup import Draft, with_copies
from setblock.decoding.plan import Part
from setblock.decoding.policy import Policy
from setblock.decoding.predictions import Logits, PassLogits, read_logits
from setblock.decoding.state import BatchState
from setblock.model.feed import Feed


@dataclass(frozen=True)
class DecodingStep:
    """What one forward pass did. B rows, k the largest block size; all tensors [B, k] unless said otherwise.

    Attributes:
        is_prefill: [B] bool, rows whose prompt, or a part of it, the pass was over.
        has_prefill: whether there may be any such rows.
        took_part: [B] bool, rows that were in the pass.
        committed: [B] bool, rows whose previous tokens this pass wrote to the cache causally (never so in the prefill).
        positions: int64, absolute positions of the block.
        token_ids: int64, the tokens chosen for them.
        revealed: bool, positions that this pass revealed.
        at: int64, where its tokens stand: `BatchState.reveal`.
        entropy: float32, nats, of the distribution at each masked position.
        finished: [B] bool, rows whose answer is whole after the pass.
        logits: the model's logits that the pass gave.
        check: in method `exact`, what became of the drafts that the pass committed; None where it committed none.
    """

    is_prefill: Tensor
    has_prefill: bool
    took_part: Tensor
    committed: Tensor
    positions: Tensor
    token_ids: Tensor
    revealed: Tensor
    at: Tensor
    entropy: Tensor
    finished: Tensor
    logits: PassLogits
    check: Check | None


@torch.inference_mode()
def absorb(state: BatchState, feed: Feed, logits: Tensor, policy: Policy) -> DecodingStep:
    """What a pass does to the state: check, reveal, and on to the next block.

    The prefill reveals a token too where the block's first token comes from the causal logit: it is known then.

    Args:
        feed: of `next_feed`; the state has not changed since.
        logits: [A, m, V] float32, of the outputs that the feed wants. Written to.
        policy: its samplers remember the pass.
    """
    # 1. What the pass committed is in the cache; it may be a draft, which is checked
    part = Part(feed.rows, batch=feed.batch)
    ends = part.put(feed.ends)
    is_prefill = None if feed.is_prefill is None else part.put(feed.is_prefill)
    took_part = ends > state.committed
    committed = took_part & (state.committed < state.block_start)
    if is_prefill is not None:
        committed &= ~is_prefill
    given = read_logits(state, feed, logits)
    is_fused = None if given.commit is None else committed & (ends == state.block_end)
    state.commit(ends, has_prefill=is_prefill is not None)
    shaped = _shaped(given, state, policy)
    state.failed |= _is_broken(shaped)
    check = None if shaped.commit is None else check_drafts(state, shaped.commit, draws=policy.draws)

    # 2. Reveal what the sampler says. Where next-token decoding's text is promised, a block's first token is its own, and
    # known at once.
    known = shaped.block.known if check is None else shaped.block.known & ~check.rejected[:, None]
    is_asked = known.any(dim=1)
    candidates = known & ~state.failed[:, None]
    guided = None
    if policy.companions.constrained:
        if check is not None:
            policy.companions.hear(state)  # drafts that were wrong; answers that end with what was right
            candidates = candidates & ~state.finished[:, None]
        guided = guided_block(state, shaped.block, candidates, policy.companions, draws=policy.draws)
        shaped, candidates = replace(shaped, block=guided.logits), guided.candidates
    of_block, best = shaped.block.logits, shaped.block.most_likely
    selection = policy.samplers.select(
        of_block,
        greatest=best.logits,
        candidates=candidates,
        revealed=state.revealed,
        is_new=state.block_passes == 0,
        is_asked=is_asked,
    )
    reveal, is_next = selection.reveal, state.takes_next
    if is_next is not None:
        reveal = reveal | (candidates & is_next)
    if selection.logits is of_block:
        chosen = choose_tokens(of_block, policy.draws, positions=state.block_positions, best=best.token_ids)
    else:
        chosen_from = selection.logits
        if is_next is not None:
            chosen_from = torch.where(is_next[..., None], of_block, chosen_from)
        chosen = choose_tokens(chosen_from, policy.draws, positions=state.block_positions)
    if guided is not None:
        reveal = guided.kept(reveal, chosen, revealed=state.revealed, entropy=selection.entropy)
    state.block_passes += is_asked if is_prefill is None else is_asked & ~is_prefill
    entropy = selection.entropy
    if guided is not None or state.copies_drafts:  # what is forced or copied may not be known to the model
        entropy = entropy.masked_fill(~known, 0)
    if state.copies_drafts:
        draft = Draft(chosen, reveal)
        copied = with_copies(state, draft, entropy=entropy, rows=took_part)
        if guided is not None:
            copied = guided_copies(state, draft, copied, policy.companions, vocab_size=policy.vocab_size)
        chosen, reveal = copied
    positions, at = state.block_positions, state.reveal(chosen, reveal)

    # 3. On to the next block, or to the end
    state.advance(corrected=None if check is None or is_fused is None else check.rejected & is_fused)
    policy.companions.hear(state)
    return DecodingStep(
        is_prefill=state.nobody if is_prefill is None else is_prefill,
        has_prefill=is_prefill is not None,
        took_part=took_part,
        committed=committed,
        positions=positions,
        token_ids=chosen,
        revealed=reveal,
        at=at,
        entropy=entropy,
        finished=state.finished,
        logits=given,
        check=check,
    )


def _shaped(logits: PassLogits, state: BatchState, policy: Policy) -> PassLogits:
    """The logits that tokens are chosen from; of a block, before its rows' companions are asked."""
    rules = policy.rules
    seen = None if rules.penalty is None else first_seen(state, logits.block.logits.shape[-1])

    def shaped(part: Logits) -> Logits:
        return replace(part, logits=rules.apply(part.logits, positions=part.positions, first_seen=seen))

    commit = None if logits.commit is None else shaped(logits.commit)
    if commit is not None and policy.companions.constrained:
        commit = guided_commit(state, commit, policy.companions)
    return PassLogits(shaped(logits.block), commit)


def _is_broken(logits: PassLogits) -> Tensor:
    """[B] bool, rows with logits that are not numbers, or infinite, or that leave no token to choose."""
    parts = (logits.block,) if logits.commit is None else (logits.block, logits.commit)
    greatest = [each.most_likely.logits for each in parts]
    # What is no number, or infinite, is not 0 when it is taken from itself.
    broken = [((most - most != 0) & each.known).any(dim=1) for each, most in zip(parts, greatest, strict=True)]
    return broken[0] if len(broken) == 1 else broken[0] | broken[1]
