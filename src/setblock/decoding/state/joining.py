"""Open the state of requests before their first pass, join rows to a batch's state, and take rows from it.

Knows which of a state's values are of rows. Knows nothing of models, logits or text.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

import torch
from torch import Tensor

from setblock.decoding.state.state import Answer, BatchState, Block, Cached
from setblock.decoding.state.terms import RowTerms, Terms
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.facts import SBDFacts

Group = TypeVar("Group", Cached, Block, Answer)


def open_state(
    written: Sequence[Sequence[int]],
    rows: Sequence[RowTerms],
    *,
    facts: SBDFacts | None,
    device: torch.device,
    draft_text: DraftText | None = None,
) -> BatchState:
    """Return the state of requests before their prefill.

    Args:
        written: of each its prompt and, where it continues after an interruption, what it has been given of its answer.
    """
    terms = Terms(rows, facts, device=device)
    tokens = torch.full((len(rows), terms.capacity), terms.mask_token)
    for row, token_ids in enumerate(written):
        tokens[row, : len(token_ids)] = torch.tensor(token_ids)
    start = torch.tensor([len(token_ids) for token_ids in written], device=device)
    end, none = torch.minimum(start + terms.block_size, terms.limit), torch.zeros_like(terms.is_ntp)
    places = torch.zeros((len(rows), terms.block_width), dtype=torch.long, device=device)
    return BatchState(
        terms=terms,
        tokens=tokens.to(device),
        cache=Cached(committed=torch.zeros_like(start), prefill_end=start, prefilled=none),
        block=Block(
            start=start,
            end=end,
            needed_end=end.clone(),
            fed_size=torch.zeros_like(start) if facts is None else terms.block_size.masked_fill(terms.is_ntp, 0),
            passes=torch.zeros_like(start),
            revealed=places.bool(),
            kinds=places,
        ),
        answer=Answer(
            text_end=start,
            stop_end=terms.limit,
            end=start,
            finished=none.clone(),
            stopped=none.clone(),
            failed=none.clone(),
        ),
        draft_text=None if draft_text is None else draft_text.to(device),
    )


@torch.inference_mode()
def joined(states: Sequence[BatchState]) -> BatchState:
    """Return the rows of several states in one state."""
    first_logits = None
    if kept := [state.first_logits for state in states if state.first_logits is not None]:
        zeros = [kept[0].new_zeros((1, kept[0].shape[1])).expand(each.batch, -1) for each in states]
        given = [each.first_logits for each in states]
        first_logits = stacked([zero if own is None else own for zero, own in zip(zeros, given, strict=True)])
    terms = Terms(
        [each for state in states for each in state.terms.rows], states[0].facts, device=states[0].tokens.device
    )
    return BatchState(
        terms=terms,
        # The row of the largest limit may get a larger block from another
        tokens=fitted(stacked([state.tokens for state in states]), terms.capacity),
        cache=_joined([state.cache for state in states]),
        block=_joined([state.block for state in states]),
        answer=_joined([state.answer for state in states]),
        first_logits=first_logits,
        draft_text=states[0].draft_text,
        may_prefill=any(state.may_prefill for state in states),
    )


@torch.inference_mode()
def taken(state: BatchState, rows: Tensor) -> BatchState:
    """Return a state of `rows` [n] only, no wider than they need."""
    terms = Terms([state.terms.rows[row] for row in rows.tolist()], state.facts, device=rows.device)
    block = _taken(state.block, rows)
    block.revealed, block.kinds = block.revealed[:, : terms.block_width], block.kinds[:, : terms.block_width]
    return BatchState(
        terms=terms,
        tokens=state.tokens[rows, : terms.capacity],
        cache=_taken(state.cache, rows),
        block=block,
        answer=_taken(state.answer, rows),
        first_logits=None if state.first_logits is None else state.first_logits[rows],
        draft_text=state.draft_text,
        may_prefill=state.may_prefill,
    )


def _joined(groups: Sequence[Group]) -> Group:
    names = [each.name for each in fields(groups[0]) if each.init]
    return type(groups[0])(**{name: stacked([getattr(group, name) for group in groups]) for name in names})


def _taken(group: Group, rows: Tensor) -> Group:
    return type(group)(**{each.name: getattr(group, each.name)[rows] for each in fields(group) if each.init})


def stacked(parts: Sequence[Tensor]) -> Tensor:
    """Stack `parts` [B, ...] as [sum of all B, ...]; they may differ in B and in the second dimension. Zeros fill it
    up."""
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([fitted(part, width) for part in parts])


def fitted(part: Tensor, width: int) -> Tensor:
    """Return [B, width, ...] of `part` [B, n, ...], cut or padded with zeros on the right."""
    missing = max(0, width - part.shape[1])
    filling = part.new_zeros((part.shape[0], missing, *part.shape[2:]))
    return torch.cat([part[:, :width], filling], dim=1)  # PyTorch 2.9 pads no tensor whose last dimension is empty
