"""Attend for requests packed in one row: everything else in a model sees N real tokens and no padding.

Knows how queries and keys of a packed row are laid out in rectangles, and how Transformers calls attention. Knows nothing of
blocks or requests.

A model is called with tokens [1, N]. In its attention layers, and nowhere else, the queries are spread over rectangles [a, Q]
of rows with like sizes, and attend the keys [a, K] that their slots of the cache hold. The model's own attention function does
so, with its soft-capping and whatever else is its own.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.masks import AttentionMask, by_layer_type, decode_mask
from setblock.model.attention.attention import OURS, mask_form
from setblock.model.attention.grouped import GroupedAttention, attention_by

_NAME = f"{OURS}packed"

_ALIGNED = 16
"""Numbers: each mask begins at a multiple of so many. GPUs read a mask in such pieces, and fail where it lies between them."""


@dataclass(frozen=True)
class Rectangle:
    """Hold rows whose attention is computed together: a rows of at most Q queries and K keys."""

    slots: Tensor  # [a, K] int64, the slot of the cache of each key
    tokens: Tensor  # [a, Q] int64, the place of each query among the N; any of them where a row has fewer than Q
    positions: Tensor  # [a, Q] int64 of each query, see `masks.decode_mask`
    limits: Tensor  # the same


@dataclass(frozen=True)
class _Layout:
    rectangles: Sequence[Rectangle]
    cells: Tensor
    name: str  # Transformers' name of the function that attends a rectangle
    mask_rows: Callable[[int], int]  # how many a mask has for so many queries: more where it was made for a group
    rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # of each rectangle's tokens or slots, all heads


_LAYOUT: ContextVar[_Layout] = ContextVar("layout")


@contextmanager
def packed_attention(
    model: PreTrainedModel, attention: GroupedAttention, rectangles: Sequence[Rectangle], cells: Tensor
) -> Iterator[AttentionMask]:
    """Make the model's attention that of the rectangles. Gives the `attention_mask` argument to call it with. `cells` [N] int64
    says where each token is a query, among the queries of all rectangles, one behind the other."""
    config = attention.config
    implementation = str(config._attn_implementation)
    # FlexAttention's block masks don't come in rectangles this small; SDPA has no soft-capping
    if implementation == "flex_attention":
        implementation = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
    for_groups = implementation == "sdpa" and all(each.tokens.shape[1] <= attention.most_queries for each in rectangles)
    most = max(max(*each.tokens.shape, each.slots.shape[1]) for each in rectangles)
    form = mask_form(model, most=most, device=model.device, implementation=implementation)

    def flat(window: int | None) -> Tensor:
        """Return the masks of all rectangles, one behind the other, [1, 1, 1, sum of a Q K], or of a `mask_rows` K for
        groups, each filled up to a multiple of `_ALIGNED`."""
        masks = []
        for each in rectangles:
            (rows, queries), keys = each.tokens.shape, each.slots.shape[1]
            mask_mod = decode_mask(position_ids=each.positions, limits=each.limits, window=window)
            mask = form.realised(mask_mod, batch=rows, queries=queries, keys=keys)
            if for_groups:  # once, and not in each layer
                mask = attention.mask(mask, queries=queries)
            assert isinstance(mask, Tensor)
            masks.append(pad(mask.flatten(), (0, -mask.numel() % _ALIGNED)))
        return torch.cat(masks)[None, None, None]

    name = attention.name if implementation == "sdpa" else implementation
    reset = _LAYOUT.set(_Layout(rectangles, cells, name, attention.mask_rows if for_groups else int))
    try:
        mask = by_layer_type(form.windows, flat)
        with attention_by(_NAME, config):
            yield mask
    finally:
        _LAYOUT.reset(reset)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend as Transformers calls it: query [1, H, N, D], and the whole cache as key and value [1, H', slots, D]. Returns
    [1, N, H, D]."""
    layout = _LAYOUT.get()
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)  # each model has its own
    base = ALL_ATTENTION_FUNCTIONS.get_interface(layout.name, eager)
    queries, keys, values = (each[0].transpose(0, 1) for each in (query, key, value))  # [N or slots, H, D]
    attended, masks = [], attention_mask.flatten()
    for each in layout.rectangles:
        (rows, length), width = each.tokens.shape, each.slots.shape[1]
        count = rows * layout.mask_rows(length) * width
        mask, masks = masks[:count].view(rows, 1, -1, width), masks[count + -count % _ALIGNED :]
        places = ((queries, each.tokens), (keys, each.slots), (values, each.slots))
        result, _ = base(module, *(_taken(*pair, layout) for pair in places), mask, **kwargs)  # [a, Q, H, D]
        attended.append(result.flatten(0, 1))
    return torch.cat(attended).index_select(0, layout.cells)[None], None


def _taken(states: Tensor, places: Tensor, layout: _Layout) -> Tensor:
    """Return [a, H, n, D], the states [N, H, D] at `places` [a, n], in this order: nothing copies them again. On a CPU
    `index_select` copies what is contiguous at once, and indexing each number."""
    heads = states.shape[1]
    rows = layout.rows.get((id(places), heads))
    if rows is None:
        each = torch.arange(heads, device=places.device)
        rows = layout.rows[id(places), heads] = (places[:, None] * heads + each[:, None]).flatten()
    return states.reshape(-1, states.shape[2]).index_select(0, rows).view(len(places), heads, -1, states.shape[2])


AttentionInterface.register(_NAME, _attend)
