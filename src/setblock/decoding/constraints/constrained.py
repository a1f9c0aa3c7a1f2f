"""Constrained logits: tokens that a row's constraints don't allow get -inf.

What is allowed at a position depends on all tokens before it, so constraints are called from left to right. A position
stays masked if one before it is neither revealed nor chosen in the same pass. If only one token is allowed, it is
chosen without the model's logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.constraints.rows import BatchConstraints
from setblock.decoding.drafts.lookup import Draft
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.choice import Draws, choose_tokens
from setblock.decoding.step.logits import Logits, most_likely


def constrained_check(state: BatchState, given: Logits, constraints: BatchConstraints) -> Logits:
    """Return the logits with those that check drafts constrained. What is allowed was stored when the draft was made:
    the tokens before it are the same. A copied draft may have a token that the request bans, which can leave no token
    to choose."""
    if given.checked is None:
        return given
    positions, known = given.checked.positions.tolist(), given.checked.known.tolist()
    logits = given.logits.clone()
    for row in constraints.constrained:
        start, allowed = state.params.rows[row].prompt_length, constraints.rows[row].allowed
        for column, is_known in enumerate(known[row]):
            if is_known:
                here = allowed[positions[row][column] - start].to(logits.device)
                logits[row, given.width + column].masked_fill_(~here, -torch.inf)
    constrained = given.with_logits(logits)
    assert constrained.checked is not None
    stuck = (given.checked.is_finite & ~constrained.checked.is_finite & given.checked.known).any(dim=1).tolist()
    for row in constraints.constrained:
        constraints.rows[row].is_stuck = stuck[row]
    return constrained


@dataclass(frozen=True)
class ConstrainedBlock:
    """A block's logits and candidates under the rows' constraints."""

    logits: Logits  # in constrained rows, -inf for tokens that are not allowed
    candidates: Tensor  # [B, k] bool; in constrained rows, where it is known what is allowed; forced positions included
    is_constrained: Tensor  # [B, 1] bool
    # [B, k] int64; in constrained rows, the token assumed at each candidate when the next position was constrained
    tentative: Tensor

    def kept(self, reveal: Tensor, chosen: Tensor, *, revealed: Tensor, entropy: Tensor) -> Tensor:
        """Return [B, k] bool, the positions of `reveal` [B, k] that are revealed.

        A constrained row always reveals its first candidate. It reveals others as long as all before them are revealed
        with the `chosen` [B, k] tokens that were assumed. If the sampler left out the first candidate, further ones are
        revealed only with an `entropy` [B, k] of 0: more would exceed the sampler's bound.
        """
        is_first = self.candidates & (self.candidates.cumsum(dim=1) == 1)
        has_first = (is_first & reveal).any(dim=1, keepdim=True)
        wanted = self.candidates & (is_first | (reveal & (has_first | (entropy == 0))))
        stands = (revealed | (wanted & (chosen == self.tentative))).long().cumprod(dim=1).bool()
        before = torch.cat([torch.ones_like(stands[:, :1]), stands[:, :-1]], dim=1)
        return torch.where(self.is_constrained, wanted & before, reveal)


def constrained_block(
    state: BatchState, block: Logits, candidates: Tensor, constraints: BatchConstraints, *, draws: Draws
) -> ConstrainedBlock:
    """Return the block under the constraints. They are called position by position, all rows together, and each
    position gets a tentative token for the next ones. `candidates` [B, k] bool: masked positions that the pass
    predicts."""
    logits, tentative = block.logits.clone(), torch.zeros_like(block.positions)
    left = candidates.clone()
    left[constraints.constrained] = False
    wanted, revealed, masked = candidates.tolist(), state.block.revealed.tolist(), state.candidates().tolist()
    has_spoken = block.known.any(dim=1).tolist()  # so that a row's tokens depend on its own passes only
    walking = [row for row in constraints.constrained if has_spoken[row]]
    counts = dict.fromkeys(walking, 0)
    for column in range(candidates.shape[1]):
        # 1. What is allowed here, in rows that have no gap so far and no token here
        walking = [
            row for row in walking if revealed[row][column] or wanted[row][column] or (column and masked[row][column])
        ]
        asking = [row for row in walking if not revealed[row][column]]
        if not asking:
            continue
        allowed = torch.ones((len(asking), logits.shape[-1]), dtype=torch.bool)
        constraints.fill(asking, allowed)

        # 2. A tentative token, unless none is allowed, or there is a choice but no prediction
        index, columns = torch.tensor(asking, device=logits.device), slice(column, column + 1)
        is_said = torch.tensor([wanted[row][column] for row in asking], device=logits.device)[:, None, None]
        here = logits[index, columns]  # [n, 1, V]
        here = here.masked_fill(~is_said & (here > -torch.inf), 0)  # bans hold without a prediction, too
        here = here.masked_fill(~allowed[:, None].to(logits.device), -torch.inf)
        logits[index, columns] = here
        best, positions = most_likely(here), block.positions[index, columns]
        chosen = choose_tokens(here, draws.select(index), positions=positions, best=best.token_ids)
        is_open = best.logits[:, 0].isfinite().tolist()
        is_forced = (allowed.sum(dim=1) == 1).tolist()
        for place, (row, token_id) in enumerate(zip(asking, chosen[:, 0].tolist(), strict=True)):
            each = constraints.rows[row]
            if not is_open[place] or not (wanted[row][column] or is_forced[place]):
                walking.remove(row)
                # A dead end, unless a token before it may still change: a tentative or drafted one
                is_draft = column > 0 and state.params.rows[row].settings.method == "exact"
                each.is_stuck = wanted[row][column] and counts[row] == 0 and not is_draft
                state.answer.failed[row] |= each.is_stuck
                continue
            left[row, column], tentative[row, column] = True, token_id
            each.allowed[len(each.received) + counts[row]] = allowed[place]
            if token_id in state.params.rows[row].ends:
                walking.remove(row)
            counts[row] += 1
            for constraint in each.restricting:
                constraint.reveal([token_id])
    for row, count in counts.items():
        for constraint in constraints.rows[row].restricting if count else ():
            constraint.retract(count)
    is_constrained = torch.zeros_like(state.answer.finished)
    is_constrained[constraints.constrained] = True
    return ConstrainedBlock(block.with_logits(logits), left, is_constrained[:, None], tentative)


def constrained_copies(
    state: BatchState, draft: Draft, copied: Draft, constraints: BatchConstraints, *, vocab_size: int
) -> Draft:
    """Return the draft with copies, in constrained rows only as far as constraints allow them, and with the tokens that
    they force. `draft`: what the pass reveals without copies. `copied`: the same with unconstrained copies."""
    token_ids, reveal = copied.token_ids.clone(), copied.reveal.clone()
    token_ids[constraints.constrained] = draft.token_ids[constraints.constrained]
    reveal[constraints.constrained] = draft.reveal[constraints.constrained]
    wanted, candidates = (copied.reveal & ~draft.reveal).tolist(), state.candidates().tolist()
    here = torch.where(state.block.revealed, state.tokens.gather(1, state.block.positions), draft.token_ids).tolist()
    for row in constraints.constrained:
        if not any(wanted[row]):
            continue
        stands = (state.block.revealed[row] | draft.reveal[row]).tolist()
        each, params = constraints.rows[row], state.params.rows[row]
        start = int(state.block.start[row]) - params.prompt_length
        count, is_copy = 0, True
        for column in range(len(each.received) - start, len(stands)):
            token_id = here[row][column]
            if not stands[column]:
                if not candidates[row][column]:
                    break
                allowed = torch.ones((1, vocab_size), dtype=torch.bool)
                constraints.fill([row], allowed)
                token_id, forced = int(copied.token_ids[row, column]), int(allowed[0].byte().argmax())
                if int(allowed.sum()) == 1:
                    token_id, is_copy = forced, is_copy and token_id == forced
                elif not (is_copy and wanted[row][column] and bool(allowed[0, token_id])):
                    break
                each.allowed[start + column] = allowed[0]
                token_ids[row, column], reveal[row, column] = token_id, True
            elif token_id != int(copied.token_ids[row, column]):
                is_copy = False  # the model's own token differs from the copy's
            count += 1
            for constraint in each.restricting:
                constraint.reveal([token_id])
            if token_id in params.ends:
                break
        for constraint in each.restricting if count else ():
            constraint.retract(count)
    return Draft(token_ids, reveal)
