"""How states are made: `open_state` for new requests, and `joined` for rows of existing states."""

from collections.abc import Sequence
from dataclasses import fields
from typing import TypeVar

import torch
from torch import Tensor

from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.state import Answer, BatchParams, BatchState, Block, Cached, Record
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.sbd_config import SBDModelConfig

Item = TypeVar("Item")
Group = TypeVar("Group", Cached, Block, Answer, Record)


def open_state(
    written: Sequence[Sequence[int]],
    rows: Sequence[RequestParams],
    *,
    sbd_config: SBDModelConfig | None,
    device: torch.device,
    draft_text: DraftText | None = None,
    records: bool = True,
) -> BatchState:
    """Return the state of requests before their prefill.

    Args:
        written: the token ids of each request: its prompt and, if it was interrupted, the answer so far.
        rows: the parameters of each request.
        sbd_config: of the model; None if it was not trained for blocks.
        device: of the tensors.
        draft_text: a text to copy drafts from, besides each row's own.
        records: whether to record what passes do.
    """
    params = BatchParams(rows, sbd_config, device=device)
    tokens = torch.full((len(rows), params.capacity), params.mask_token)
    for row, token_ids in enumerate(written):
        tokens[row, : len(token_ids)] = torch.tensor(token_ids)
    start = torch.tensor([len(token_ids) for token_ids in written], device=device)
    end, none = torch.minimum(start + params.block_size, params.limit), torch.zeros_like(params.is_ntp)
    places = torch.zeros((len(rows), params.block_width), dtype=torch.long, device=device)
    return BatchState(
        params=params,
        tokens=tokens.to(device),
        cache=Cached(committed=torch.zeros_like(start), prefill_end=start, prefilled=none),
        block=Block(
            start=start,
            end=end,
            needed_end=end.clone(),
            fed_size=params.fed_size.clone(),
            passes=torch.zeros_like(start),
            revealed=places.bool(),
            kinds=places,
        ),
        answer=Answer(text_end=start, stop_end=params.limit, end=start, finished=none, failed=none),
        first_logits=places[:, :0].float(),
        record=_open_record(params) if records else None,
        draft_text=None if draft_text is None else draft_text.to(device),
    )


def _open_record(params: BatchParams) -> Record:
    none = torch.zeros_like(params.prompt_length)
    nowhere, alternatives = none[:, None].expand(-1, params.capacity), params.num_alternatives
    kept = nowhere[:, :0] if alternatives is None else nowhere  # [B, C], or [B, 0] where no log-probabilities are kept
    top = kept[..., None].expand(-1, -1, alternatives or 0)
    return Record(
        prefill=none,
        number=none.clone(),
        commits=none.clone(),
        drafted=none.clone(),
        accepted=none.clone(),
        revealing=nowhere - 1,
        entropies=nowhere.float(),
        logprob=kept.float(),
        rank=kept + 1,
        top_logprobs=top.float(),
        top_ids=top.clone(),
    )


def joined(states: Sequence[BatchState], rows: Sequence[int] | None = None) -> BatchState:
    """Return one state with the rows of several, or only `rows`, numbered over all states; as narrow as possible."""
    first, device = states[0], states[0].tokens.device
    here = None if rows is None else torch.tensor(rows, device=device)
    params = BatchParams(
        joined_list([state.params.rows for state in states], rows), first.params.sbd_config, device=device
    )
    has_records = any(each.record is not None for each in states)
    records = [each.record or _open_record(each.params) for each in states] if has_records else []
    first_logits = [each.first_logits for each in states]
    return BatchState(
        params=params,
        tokens=joined_rows([state.tokens for state in states], here, params.capacity),
        cache=joined_group([state.cache for state in states], here),
        block=joined_group([state.block for state in states], here, params.block_width),
        answer=joined_group([state.answer for state in states], here),
        record=joined_group(records, here, params.capacity, params.num_alternatives or 0) if records else None,
        first_logits=joined_rows(first_logits, here, max(each.shape[1] for each in first_logits)),
        draft_text=first.draft_text,
        may_prefill=any(state.may_prefill for state in states),
    )


def joined_list(parts: Sequence[Sequence[Item]], rows: Sequence[int] | None) -> list[Item]:
    """Return the concatenation of several lists, or its items at `rows`."""
    every = [each for part in parts for each in part]
    return every if rows is None else [every[row] for row in rows]


def joined_group(groups: Sequence[Group], rows: Tensor | None, *sizes: int) -> Group:
    """Return one group with the rows of several, or only `rows` [n], as `joined_rows` does."""
    columns = {each.name: [getattr(group, each.name) for group in groups] for each in fields(groups[0]) if each.init}
    return type(groups[0])(**{name: joined_rows(parts, rows, *sizes) for name, parts in columns.items()})


def joined_rows(parts: Sequence[Tensor], rows: Tensor | None, *sizes: int) -> Tensor:
    """Return `parts` [B, ...] concatenated over rows, or only `rows` [n], with further dimensions fitted to `sizes`."""
    whole = torch.cat([_fitted(part, *sizes[: part.dim() - 1]) for part in parts])
    return whole if rows is None else whole[rows]


def _fitted(part: Tensor, *sizes: int) -> Tensor:
    """Return `part` [B, ...] as [B, *sizes, ...]: each dimension is cut, or padded with zeros, at its end."""
    for dim, size in enumerate(sizes, start=1):
        if size > part.shape[dim]:  # PyTorch 2.9 pads no tensor whose last dimension is empty
            missing = part.new_zeros((*part.shape[:dim], size - part.shape[dim], *part.shape[dim + 1 :]))
            part = torch.cat([part, missing], dim=dim)
        part = part.narrow(dim, 0, size)
    return part
