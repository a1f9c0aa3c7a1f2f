"""Copy drafts from the text, from where it was last as it is now (prompt lookup decoding), or from the model's draft text.

Knows tokens and positions. Knows nothing of models. Method `exact` checks whatever is drafted, so a copy can only save passes.
Shapes: B rows, C positions, k the largest block size.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from setblock.decoding.drafts.kinds import ELSEWHERE, copied_kinds
from setblock.decoding.state.state import NO_TOKEN, BatchState
from setblock.model.protocol.draft_text import LONGEST_MATCH, DraftText

SURE = 0.5
"""Nats. Of a token drafted with a smaller entropy, the model knows better than a copy."""

_NO_OTHER = NO_TOKEN - 1  # where a text has not begun, nothing matches


class Copies(NamedTuple):
    """Hold what was found for each row."""

    matched: Tensor  # [B] int64, how many tokens match, at most `LONGEST_MATCH`; 0 where nothing was found
    # [B, k] int64, the token at `start` and what followed it at the earlier place; anything where nothing was found
    token_ids: Tensor
    # [B, k] int64, of which kind each is, or [B, 2] where k is 1; anything in the first place
    kinds: Tensor


def copied(tokens: Tensor, start: Tensor, *, size: int, others: DraftText | None = None) -> Copies:
    """Return the continuation of the longest match of a text's end: the latest of equally long ones of up to `LONGEST_MATCH`
    tokens. Another text's, if more tokens match there.

    A match that ends right before the text's own end is continued automatically: after `a b a b` follows `a b`.

    Args:
        tokens: [B, C] int64, of which those up to `start` are known.
        start: [B] int64, the position of the last known token.
        size: k.
        others: texts to copy from, besides each row's.
    """
    positions, start = torch.arange(tokens.shape[1], device=tokens.device), start[:, None]
    # 1. At each position, how many tokens up to it equal those up to the end: all behind the last one that differs
    before = pad(tokens, (LONGEST_MATCH - 1, 0), value=NO_TOKEN)
    runs = before.unfold(1, LONGEST_MATCH, 1)  # [B, C, LONGEST_MATCH], those up to each position
    last = before.gather(1, start + positions[:LONGEST_MATCH])  # [B, LONGEST_MATCH]
    last = last.masked_fill(last == NO_TOKEN, _NO_OTHER)
    places = torch.arange(1, LONGEST_MATCH + 1, dtype=torch.uint8, device=tokens.device)
    matched = LONGEST_MATCH - ((runs != last[:, None]) * places).amax(dim=2).long()
    matched = matched.masked_fill(positions >= start, 0)

    # 2. The place of the longest, and what comes after it
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
    """Hold what a pass reveals: `token_ids` [B, k] int64, where `reveal` [B, k] bool says so."""

    token_ids: Tensor
    reveal: Tensor


def with_copies(state: BatchState, draft: Draft, *, entropy: Tensor, rows: Tensor) -> tuple[Draft, Tensor]:
    """Return a pass's draft, with copies where the model is unsure, of exact rows whose block's first token is known; and [B,
    k] the kind that each place is of if it is copied; in the first place, which never is, that of the second if there is a
    copy, and else 0.

    A copy holds as long as it agrees with every place before it of which the model is sure: places that earlier passes
    revealed, and those that this one reveals with an entropy of at most `SURE`. `entropy` [B, k] float32, in nats, is
    of the distribution that each token of the draft was chosen from. `rows` [B] bool took part in the pass."""
    # 1. The text up to the block's first token, and what followed it before
    positions = state.block.positions
    here = state.tokens.gather(1, positions)
    ours = torch.where(draft.reveal, draft.token_ids, here)
    has_first = state.block.revealed[:, 0] | draft.reveal[:, 0]
    known = state.tokens.scatter(1, positions[:, :1], ours[:, :1])
    copies = copied(known, state.block.start, size=positions.shape[1], others=state.draft_text)
    rows = rows & has_first & (state.params.prompt_lookup > 0) & (copies.matched >= state.params.prompt_lookup)

    # 2. Where the model says nothing better
    is_sure = state.block.revealed | (draft.reveal & (entropy <= SURE))
    is_sure[:, 0] = True  # next-token decoding's own choice
    agrees = ~is_sure | (ours == copies.token_ids)
    holds = pad(agrees[:, :-1].cumprod(dim=1), (1, 0), value=1).bool()
    fill = rows[:, None] & holds & ~is_sure & state.candidates()
    kinds = copies.kinds[:, : positions.shape[1]]
    kinds[:, 0] = torch.where(rows, copies.kinds[:, 1], 0)
    return Draft(torch.where(fill, copies.token_ids, draft.token_ids), draft.reveal | fill), kinds
