"""The exact check: drafts are compared with next-token decoding, and the state is corrected where they differ."""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.state.state import BatchState
from setblock.decoding.step.choice import Draws, chosen_from
from setblock.decoding.step.logits import Logits


@dataclass(frozen=True)
class Check:
    """The result of checking the drafts that a pass committed."""

    positions: Tensor  # [B, m] int64, absolute
    token_ids: Tensor  # [B, m] int64, next-token decoding's choices there
    known: Tensor  # [B, m] bool, positions that were checked
    first_wrong: Tensor  # [B] int64, the first column where the draft is wrong; m if there is none
    replaced: Tensor  # [B, m] bool, `first_wrong` if its logits are finite: it has next-token decoding's token now
    rejected: Tensor  # [B] bool, rows whose draft was wrong somewhere
    failed: Tensor  # [B] bool, rejected rows whose logits are not finite at `first_wrong`

    @property
    def accepted(self) -> Tensor:
        """Columns where the draft was right, [B, m] bool."""
        columns = torch.arange(self.known.shape[1], device=self.known.device)
        return (columns < self.first_wrong[:, None]) & self.known


def check_drafts(state: BatchState, checked: Logits, *, is_finite: Tensor, draws: Draws) -> Check:
    """Compare drafts with next-token decoding, and correct the state where they differ.

    A draft's first token is not checked: it came from causal logits, so it is right. Logits after a wrong token are
    ignored: next-token decoding would not have them.

    Args:
        state: of the batch; corrected in place.
        checked: the logits [B, m, V] that tokens are chosen from.
        is_finite: [B, m] bool, where they are finite.
        draws: how each row draws its tokens.
    """
    chosen = chosen_from(checked, draws)  # [B, m]
    drafted = state.tokens.gather(1, checked.positions)
    columns, count = state.columns[: chosen.shape[1]], chosen.shape[1]
    is_right = (chosen == drafted) & is_finite
    is_wrong = checked.known > is_right  # known and not right, in one operation
    first_wrong = columns.where(is_wrong, count).amin(dim=1)
    rejected, replaced = first_wrong < count, (columns == first_wrong[:, None]) & is_finite
    has_token = replaced.any(dim=1)

    state.write(chosen, checked.known, positions=checked.positions)  # tokens after the first wrong one are ignored
    state.correct(rejected, checked.positions[:, 0] + first_wrong, has_token=has_token)
    failed = rejected != has_token
    return Check(checked.positions, chosen, checked.known, first_wrong, replaced, rejected, failed)
