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

from setblock.decoding.state.state import BatchState
from setblock.decoding.step.choice import Draws, choose_tokens
from setblock.decoding.step.logits import Logits


@dataclass(frozen=True)
class Check:
    """Hold the result of checking the drafts that a pass committed.

    Attributes:
        token_ids: [B, m] next-token decoding's choices at the positions that were checked.
        known: [B, m] bool, where they count.
        first_wrong: [B, 1] the first column where the draft is rejected; m where there is none.
        replaced: [B, m] bool, that column, if a token could be chosen there.
        rejected: [B] bool, rows whose draft was cut.
        failed: [B] bool, those of them in which next-token decoding would have met logits that are not finite there.
    """

    token_ids: Tensor
    known: Tensor
    first_wrong: Tensor
    replaced: Tensor
    rejected: Tensor
    failed: Tensor

    @property
    def accepted(self) -> Tensor:
        """Return [B, m] bool, where the draft had the same."""
        columns = torch.arange(self.known.shape[1], device=self.known.device)
        return (columns < self.first_wrong) & self.known


def check_drafts(state: BatchState, commit: Logits, *, is_finite: Tensor, draws: Draws) -> Check:
    """Compare drafts with next-token decoding, and put the state right where they differ.

    A draft's first token is not among them: it came from a causal logit.

    Args:
        commit: the logits that tokens are chosen from.
        is_finite: [B, m] bool, where they are finite. Logits behind a rejected draft are ignored: plain decoding never computes
            them.
    """
    best = commit.best.token_ids
    chosen = choose_tokens(commit.logits, draws, positions=commit.positions, best=best)  # [B, m]
    drafted = state.tokens.gather(1, commit.positions)
    columns, count = state.columns[: chosen.shape[1]], chosen.shape[1]
    is_right = (chosen == drafted) & is_finite
    first_wrong = columns.where(commit.known > is_right, count).amin(dim=1, keepdim=True)
    is_first_wrong, rejected = columns == first_wrong, first_wrong[:, 0] < count
    failed = (is_first_wrong > is_finite).any(dim=1)

    state.write(chosen, commit.known, positions=commit.positions)  # what comes behind the first that differs is void
    state.correct(rejected, (commit.positions[:, :1] + first_wrong)[:, 0], failed=failed)
    return Check(chosen, commit.known, first_wrong, is_first_wrong & is_finite, rejected, failed)
