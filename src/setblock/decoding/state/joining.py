"""Join rows to a batch's state and take rows from it, between passes.

Knows which of a state's values are of rows. Knows nothing of what they mean.
"""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor

from setblock.decoding.state.ragged import fitted, stacked
from setblock.decoding.state.state import NO_TOKEN, BatchState, capacity_of


@torch.inference_mode()
def joined(states: Sequence[BatchState]) -> BatchState:
    """Return the rows of several states in one state."""
    first_logits = None
    if any(state.first_logits is not None for state in states):
        vocab_size = max(0 if state.first_logits is None else state.first_logits.shape[1] for state in states)
        first_logits = stacked(
            [
                torch.zeros((state.batch, vocab_size), device=state.tokens.device)
                if state.first_logits is None
                else state.first_logits
                for state in states
            ]
        )
    terms = tuple(each for state in states for each in state.terms)
    parts = {name: stacked([getattr(state, name) for state in states]) for name in _TENSORS}
    parts["ends"] = stacked([state.ends for state in states], fill=NO_TOKEN)
    # The row of the largest limit may get a larger block from another.
    parts["tokens"] = fitted(parts["tokens"], capacity_of(terms))
    may_prefill = any(state.may_prefill for state in states)
    return BatchState(
        facts=states[0].facts,
        terms=terms,
        first_logits=first_logits,
        draft_text=states[0].draft_text,
        may_prefill=may_prefill,
        **parts,
    )


@torch.inference_mode()
def taken(state: BatchState, rows: Tensor) -> BatchState:
    """Return a state of `rows` [n] only, no wider than they need."""
    terms = tuple(state.terms[row] for row in rows.tolist())
    parts: dict[str, Any] = {name: getattr(state, name)[rows] for name in _TENSORS}
    parts["tokens"] = parts["tokens"][:, : capacity_of(terms)]
    for name in ("revealed", "draft_kinds"):
        parts[name] = parts[name][:, : max(each.block_size for each in terms)]
    return BatchState(
        facts=state.facts,
        terms=terms,
        first_logits=None if state.first_logits is None else state.first_logits[rows],
        draft_text=state.draft_text,
        may_prefill=state.may_prefill,
        **parts,
    )


_OTHERS = ("facts", "terms", "first_logits", "draft_text", "may_prefill")
_TENSORS = [each.name for each in fields(BatchState) if each.init and each.name not in _OTHERS]
