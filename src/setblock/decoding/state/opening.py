"""Build the state of requests before their first pass.

Knows tokens and rows' terms. Knows nothing of models, logits or text.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from setblock.decoding.settings.terms import RowTerms
from setblock.decoding.state.state import NO_TOKEN, BatchState, capacity_of, mask_of
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.facts import SBDFacts


def open_state(
    written: Sequence[Sequence[int]],
    terms: Sequence[RowTerms],
    *,
    facts: SBDFacts | None,
    device: torch.device,
    draft_text: DraftText | None = None,
) -> BatchState:
    """Return the state of requests before their prefill.

    Args:
        written: of each its prompt and, where it continues after an interruption, what it has been given of its answer.
    """
    tokens = torch.full((len(written), capacity_of(terms)), mask_of(facts))
    for row, token_ids in enumerate(written):
        tokens[row, : len(token_ids)] = torch.tensor(token_ids)
    most_ends = max(1, *(len(each.ends) for each in terms))

    def column(values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.long, device=device)

    def flags(values: list[bool]) -> Tensor:
        return torch.tensor(values, dtype=torch.bool, device=device)

    start = column([len(token_ids) for token_ids in written])
    limit, size = column([each.limit for each in terms]), column([each.block_size for each in terms])
    none = flags([False] * len(terms))
    return BatchState(
        facts=facts,
        terms=tuple(terms),
        tokens=tokens.to(device),
        prompt_length=column([each.prompt_length for each in terms]),
        limit=limit,
        ends=torch.tensor([[*each.ends, *[NO_TOKEN] * (most_ends - len(each.ends))] for each in terms], device=device),
        committed=torch.zeros_like(start),
        prefill_end=start,
        prefilled=none,
        block_start=start,
        block_end=torch.minimum(start + size, limit),
        needed_end=torch.minimum(start + size, limit),
        block_size=size,
        fed_size=column([0 if facts is None or each.method == "ntp" else each.block_size for each in terms]),
        block_passes=torch.zeros_like(start),
        revealed=torch.zeros((len(terms), max(each.block_size for each in terms)), dtype=torch.bool, device=device),
        is_ntp=flags([each.method == "ntp" for each in terms]),
        is_exact=flags([each.method == "exact" for each in terms]),
        draft_lookup=column([each.draft_lookup if each.method == "exact" else 0 for each in terms]),
        draft_kinds=torch.zeros((len(terms), max(each.block_size for each in terms)), dtype=torch.long, device=device),
        text_end=start,
        stop_end=limit,
        answer_end=start,
        finished=none.clone(),
        stopped=none.clone(),
        failed=none.clone(),
        draft_text=None if draft_text is None else draft_text.to(device),
    )
