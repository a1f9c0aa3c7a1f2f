"""Check drafts in exact mode: the pass that commits a block says whether next-token decoding agrees with it.

The commit pass runs the draft causally, so its outputs are the logits that next-token decoding would have seen. The longest
prefix of the draft is kept that next-token decoding would have chosen too; at the first disagreement its choice is taken and
the rest of the draft is dropped, with what the pass did for the next block. Where all agree, nothing was lost: the next
block's first pass is done.

Next-token decoding's choice is a function of the causal logits and, at a temperature above 0, of noise that depends on the
seed, the position and the token id alone (`choice`). The draft is made with the same noise, but a draft only decides how many
tokens a pass yields, never which. So the output is what `ntp` gives for the same seed, at any temperature; see docs/exact.md.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.choice import Draws, choose_tokens
from setblock.decoding.predictions import Logits
from setblock.decoding.state import BatchState


@dataclass(frozen=True)
class Check:
    """Hold the result of checking the drafts that a pass committed.

    Attributes:
        token_ids: [B, m] next-token decoding's choices at the positions that were checked.
        accepted: [B, m] bool, where the draft had the same.
        replaced: [B, m] bool, where it had not, and the choice took its place: at most one in a row.
        rejected: [B] bool, rows whose draft was cut.
        entropy: [B, m] float32, nats, of the distribution where the draft was replaced.
    """

    token_ids: Tensor
    accepted: Tensor
    replaced: Tensor
    rejected: Tensor
    entropy: Tensor


def check_drafts(state: BatchState, commit: Logits, *, draws: Draws) -> Check:
    """Compare drafts with next-token decoding, and put the state right where they differ.

    A draft's first token is not among them: it came from a causal logit. `commit` has the logits that tokens are chosen from.
    """
    best = commit.best.token_ids
    chosen = choose_tokens(commit.logits, draws, positions=commit.positions, best=best)  # [B, m]
    drafted = state.tokens.gather(1, commit.positions)
    known = commit.known & ~state.failed[:, None]
    columns, count = state.columns[: chosen.shape[1]], chosen.shape[1]
    first_wrong = columns.where((chosen != drafted) & known, count).amin(dim=1, keepdim=True)  # [B, 1]: m where none is
    rejected = first_wrong[:, 0] < count

    state.answer_end = torch.where(known.any(dim=1), state.committed, state.answer_end)
    at = first_wrong.clamp(max=count - 1)
    state.correct(rejected, commit.positions.gather(1, at)[:, 0], chosen.gather(1, at)[:, 0])
    right = commit.logits.gather(1, at[..., None].expand(-1, -1, commit.logits.shape[-1]))  # [B, 1, V]
    return Check(
        token_ids=chosen,
        accepted=(columns < first_wrong) & known,
        replaced=columns == first_wrong,
        rejected=rejected,
        entropy=torch.special.entr(right.softmax(dim=-1)).sum(dim=-1).expand(-1, count),
    )
