"""Drafts copied from an earlier place in the row's own text (prompt lookup decoding) or from the model's draft text.

Method `exact` checks all drafts, so a copy can only save passes. Shapes: B rows, C positions, k the largest block size.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from setblock.decoding.drafts.kinds import ELSEWHERE, copied_kinds
from setblock.decoding.state.state import NO_TOKEN, BatchState
from setblock.model.protocol.draft_text import LONGEST_MATCH, DraftText

SURE = 0.5
"""Nats. A token that the model drafted with at most this entropy is preferred to a copy."""

_NO_OTHER = NO_TOKEN - 1  # before the beginning of a text: matches nothing


class Copies(NamedTuple):
    """The copy that was found for each row."""

    matched: Tensor  # [B] int64, how many tokens match, at most `LONGEST_MATCH`; 0 if nothing was found
    # [B, k] int64, the token at `start`, then those after it at the earlier place; arbitrary if nothing was found
    token_ids: Tensor
    # [B, k] int64, the kind of each token, or [B, 2] if k is 1; arbitrary in the first place
    kinds: Tensor


def copied(tokens: Tensor, start: Tensor, *, size: int, others: DraftText | None = None) -> Copies:
    """Return what follows the longest earlier match of the text's end, of up to `LONGEST_MATCH` tokens: the latest of
    equally long ones, or the one in `others` if more tokens match there.

    A match close to the text's end is continued periodically: `a b a b` is followed by `a b`.

    Args:
        tokens: [B, C] int64, known up to `start`.
        start: [B] int64, the position of the last known token.
        size: k.
        others: further texts to copy from, besides each row's own.
    """
    positions, start = torch.arange(tokens.shape[1], device=tokens.device), start[:, None]
    # 1. For each position, how many tokens up to it match those up to the end: all after the last one that differs
    before = pad(tokens, (LONGEST_MATCH - 1, 0), value=NO_TOKEN)
    runs = before.unfold(1, LONGEST_MATCH, 1)  # [B, C, LONGEST_MATCH], those up to each position
    last = before.gather(1, start + positions[:LONGEST_MATCH])  # [B, LONGEST_MATCH]
    last = last.masked_fill(last == NO_TOKEN, _NO_OTHER)
    places = torch.arange(1, LONGEST_MATCH + 1, dtype=torch.uint8, device=tokens.device)
    matched = LONGEST_MATCH - ((runs != last[:, None]) * places).amax(dim=2).long()
    matched = matched.masked_fill(positions >= start, 0)

    # 2. The place of the longest match, and what follows it
    place = (matched * tokens.shape[1] + positions).argmax(dim=1, keepdim=True)  # [B, 1]
    steps = torch.arange(size, device=tokens.device)
    period = (start - place).clamp(min=1)
    matched = matched.gather(1, place)[:, 0]
    own = Copies(matched, tokens.gather(1, place + steps % period), copied_kinds(matched, max(2, size)))
    if others is None:
        return own

    # 3. Other texts
    found = others.find(last.flip(1), start[:, 0] + 1)
    following, levels = others.following(found.place, max(1, size - 1))
    levels[:, 0] = found.level
    is_longer = (found.matched > own.matched)[:, None]
    token_ids = torch.cat([last[:, -1:], following], dim=1)[:, :size]
    return Copies(
        torch.maximum(found.matched, own.matched),
        torch.where(is_longer, token_ids, own.token_ids),
        torch.where(is_longer, ELSEWHERE + pad(levels, (1, 0)), own.kinds),
    )


class Draft(NamedTuple):
    """The tokens that a pass reveals: `token_ids` [B, k] int64 where `reveal` [B, k] bool is True."""

    token_ids: Tensor
    reveal: Tensor


def with_copies(state: BatchState, draft: Draft, *, entropy: Tensor, rows: Tensor) -> tuple[Draft, Tensor]:
    """Return a pass's draft with copies where the model is unsure, in exact rows whose block's first token is known.

    A copy is used as long as it agrees with every place before it of which the model is sure: places that earlier
    passes revealed, and those that this one reveals with an entropy of at most `SURE`.

    Args:
        state: of the batch.
        draft: what the pass reveals without copies.
        entropy: [B, k] float32, nats, of the distribution that each token of the draft was chosen from.
        rows: [B] bool, rows that took part in the pass.

    Returns:
        The draft with copies; and [B, k] int64, the kind of each place if it is copied. The first place is never
        copied: it has the kind of the second if there is a copy, otherwise 0.
    """
    # 1. The text up to the block's first token, and what followed it at an earlier place
    positions = state.block.positions
    here = state.tokens.gather(1, positions)
    ours = torch.where(draft.reveal, draft.token_ids, here)
    has_first = state.block.revealed[:, 0] | draft.reveal[:, 0]
    known = state.tokens.scatter(1, positions[:, :1], ours[:, :1])
    copies = copied(known, state.block.start, size=positions.shape[1], others=state.draft_text)
    rows = rows & has_first & (state.params.prompt_lookup > 0) & (copies.matched >= state.params.prompt_lookup)

    # 2. The places where the model is unsure
    is_sure = state.block.revealed | (draft.reveal & (entropy <= SURE))
    is_sure[:, 0].fill_(True)  # it is next-token decoding's choice
    agrees = ~is_sure | (ours == copies.token_ids)
    holds = pad(agrees[:, :-1].cumprod(dim=1), (1, 0), value=1).bool()
    fill = rows[:, None] & holds & ~is_sure & state.candidates()
    kinds = copies.kinds[:, : positions.shape[1]]
    kinds[:, 0] = torch.where(rows, copies.kinds[:, 1], 0)
    return Draft(torch.where(fill, copies.token_ids, draft.token_ids), draft.reveal | fill), kinds
