"""Restrict logits to what constraints allow, given all that comes before each position.

Knows the order in which constraints have to be asked. Where something before a position is neither revealed nor chosen in the
same pass, what may come there is not known yet, and it stays masked. Where only one token may come, it is known without the
model's logits.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.constraints.constraint import BatchConstraints
from setblock.decoding.drafts.lookup import Draft
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.choice import Draws, choose_tokens
from setblock.decoding.step.logits import Logits, most_likely


def constrained_check(state: BatchState, given: Logits, constraints: BatchConstraints) -> Logits:
    """Mask the logits at which drafts are checked. What may come at a place was asked when the draft was made: before it
    stands the same. A copied draft may be one that a request bans, and leave no token."""
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
    """Hold a block's logits and candidates under what constraints allow."""

    logits: Logits  # of constrained rows, -inf where a token may not come
    candidates: Tensor  # [B, k] bool; of constrained rows, as far as it is known what may come, and what is forced
    is_constrained: Tensor  # [B, 1] bool
    # [B, k] int64, of constrained rows, the token that each was given so that the next could be asked
    tentative: Tensor

    def kept(self, reveal: Tensor, chosen: Tensor, *, revealed: Tensor, entropy: Tensor) -> Tensor:
        """Return which positions of `reveal` [B, k] are revealed, [B, k] bool. A constrained row reveals its first
        candidate at least, and others as far as all before them are revealed, with the `chosen` [B, k] tokens for which
        they were asked. Where the sampler left the first candidate out, only those without `entropy` [B, k] go with it:
        more would be beyond the sampler's bound."""
        is_first = self.candidates & (self.candidates.cumsum(dim=1) == 1)
        has_first = (is_first & reveal).any(dim=1, keepdim=True)
        wanted = self.candidates & (is_first | (reveal & (has_first | (entropy == 0))))
        stands = (revealed | (wanted & (chosen == self.tentative))).long().cumprod(dim=1).bool()
        before = torch.cat([torch.ones_like(stands[:, :1]), stands[:, :-1]], dim=1)
        return torch.where(self.is_constrained, wanted & before, reveal)


def constrained_block(
    state: BatchState, block: Logits, candidates: Tensor, constraints: BatchConstraints, *, draws: Draws
) -> ConstrainedBlock:
    """Ask constrained rows' constraints, position by position and all rows at once, giving each position a token on the way.
    `candidates` [B, k] bool are masked positions of which the pass says something."""
    logits, tentative = block.logits.clone(), torch.zeros_like(block.positions)
    left = candidates.clone()
    left[constraints.constrained] = False
    wanted, revealed, masked = candidates.tolist(), state.block.revealed.tolist(), state.candidates().tolist()
    has_spoken = block.known.any(dim=1).tolist()  # what a row is given depends on its own passes only
    walking = [row for row in constraints.constrained if has_spoken[row]]
    told = dict.fromkeys(walking, 0)
    for column in range(candidates.shape[1]):
        # 1. Who is still without a gap, and needs to know what may come here?
        walking = [
            row for row in walking if revealed[row][column] or wanted[row][column] or (column and masked[row][column])
        ]
        asking = [row for row in walking if not revealed[row][column]]
        if not asking:
            continue
        allowed = torch.ones((len(asking), logits.shape[-1]), dtype=torch.bool)
        constraints.fill(asking, allowed)

        # 2. A token for it, unless nothing may come, or there is a choice and nothing to choose by
        index, columns = torch.tensor(asking, device=logits.device), slice(column, column + 1)
        is_said = torch.tensor([wanted[row][column] for row in asking], device=logits.device)[:, None, None]
        here = logits[index, columns]  # [n, 1, V]
        here = here.masked_fill(~is_said & (here > -torch.inf), 0)  # bans count there, too
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
                # A dead end, unless another token may still come before it: where tokens are tentative, or a draft.
                is_draft = column > 0 and state.params.rows[row].settings.method == "exact"
                each.is_stuck = wanted[row][column] and told[row] == 0 and not is_draft
                state.answer.failed[row] |= each.is_stuck
                continue
            left[row, column], tentative[row, column] = True, token_id
            each.allowed[len(each.received) + told[row]] = allowed[place]
            if token_id in state.params.rows[row].ends:
                walking.remove(row)
            told[row] += 1
            for constraint in each.restricting:
                constraint.reveal([token_id])
    for row, count in told.items():
        for constraint in constraints.rows[row].restricting if count else ():
            constraint.retract(count)
    is_constrained = torch.zeros_like(state.answer.finished)
    is_constrained[constraints.constrained] = True
    return ConstrainedBlock(block.with_logits(logits), left, is_constrained[:, None], tentative)


def constrained_copies(
    state: BatchState, draft: Draft, copied: Draft, constraints: BatchConstraints, *, vocab_size: int
) -> Draft:
    """Return what is copied into constrained rows: as far as constraints allow it, with the tokens that they force. `draft` is
    what the pass reveals without copies, and `copied` the same with copies, as if any token were allowed."""
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
        told, is_copy = 0, True
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
                is_copy = False  # the model's own token, from which the copy would continue otherwise
            told += 1
            for constraint in each.restricting:
                constraint.reveal([token_id])
            if token_id in params.ends:
                break
        for constraint in each.restricting if told else ():
            constraint.retract(told)
    return Draft(token_ids, reveal)
