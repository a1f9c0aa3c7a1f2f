"""Open the state of requests before their first pass, join rows to a batch's state, and take rows from it.

Knows which of a state's values are of rows. Knows nothing of models, logits or text.
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from setblock.decoding.state.groups import Answer, Block, Cached, Record, fitted, joined_group, stacked, taken_group
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.terms import RowTerms, Terms
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.facts import SBDFacts


def open_state(
    written: Sequence[Sequence[int]],
    rows: Sequence[RowTerms],
    *,
    facts: SBDFacts | None,
    device: torch.device,
    draft_text: DraftText | None = None,
    records: bool = True,
) -> BatchState:
    """Return the state of requests before their prefill.

    Args:
        records: whether to record what passes do.
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
        record=_open_record(terms) if records else None,
        draft_text=None if draft_text is None else draft_text.to(device),
    )


def _open_record(terms: Terms) -> Record:
    none = torch.zeros_like(terms.prompt_length)
    nowhere = none[:, None].expand(-1, terms.capacity)
    alternatives = nowhere[..., None].expand(-1, -1, terms.num_alternatives or 0)
    return Record(
        prefill=none,
        number=none.clone(),
        commits=none.clone(),
        drafted=none.clone(),
        accepted=none.clone(),
        revealing=nowhere - 1,
        entropies=nowhere.float(),
        logprob=nowhere.float(),
        top_logprobs=alternatives.float(),
        top_ids=alternatives.clone(),
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
    records = [each.record for each in states if each.record is not None]
    return BatchState(
        terms=terms,
        # The row of the largest limit may get a larger block from another
        tokens=fitted(stacked([state.tokens for state in states]), terms.capacity),
        cache=joined_group([state.cache for state in states]),
        block=joined_group([state.block for state in states]),
        answer=joined_group([state.answer for state in states]),
        record=_sized(joined_group(records), terms) if records else None,
        first_logits=first_logits,
        draft_text=states[0].draft_text,
        may_prefill=any(state.may_prefill for state in states),
    )


@torch.inference_mode()
def taken(state: BatchState, rows: Tensor) -> BatchState:
    """Return a state of `rows` [n] only, no wider than they need."""
    terms = Terms([state.terms.rows[row] for row in rows.tolist()], state.facts, device=rows.device)
    block = taken_group(state.block, rows)
    block.revealed, block.kinds = block.revealed[:, : terms.block_width], block.kinds[:, : terms.block_width]
    return BatchState(
        terms=terms,
        tokens=state.tokens[rows, : terms.capacity],
        cache=taken_group(state.cache, rows),
        block=block,
        answer=taken_group(state.answer, rows),
        record=None if state.record is None else _sized(taken_group(state.record, rows), terms),
        first_logits=None if state.first_logits is None else state.first_logits[rows],
        draft_text=state.draft_text,
        may_prefill=state.may_prefill,
    )


def _sized(record: Record, terms: Terms) -> Record:
    """Return a record with the positions and the alternatives that its rows need."""
    sizes = (terms.capacity, terms.num_alternatives or 0)
    wide = {name: getattr(record, name) for name in ("revealing", "entropies", "logprob", "top_logprobs", "top_ids")}
    return replace(record, **{name: fitted(each, *sizes[: each.dim() - 1]) for name, each in wide.items()})
