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
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.masks import AttentionMask, MaskMod
from setblock.model.attention.attention import OURS, attention_mask
from setblock.model.attention.grouped import GroupedAttention, attention_by

_NAME = f"{OURS}packed"

_ALIGNED = 16
"""Numbers: each mask begins at a multiple of so many. GPUs read a mask in such pieces, and fail where it lies between them."""


@dataclass(frozen=True)
class Rectangle:
    """Hold rows whose attention is computed together: a rows of at most Q queries and K keys.

    Attributes:
        tokens: [a, Q] int64, the place of each query among the N; any of them where a row has fewer than Q.
        slots: [a, K] int64, the slot of the cache of each key.
        mask_mod_for: makes the mask of these queries and keys for a sliding window, or for none.
    """

    tokens: Tensor
    slots: Tensor
    mask_mod_for: Callable[[int | None], MaskMod]


@dataclass(frozen=True)
class _Layout:
    rectangles: Sequence[Rectangle]
    cells: Tensor
    attention: GroupedAttention
    implementation: str
    for_groups: bool  # whether masks have each query for each head of a group
    rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # of each rectangle's tokens or slots, all heads


_LAYOUT: ContextVar[_Layout] = ContextVar("layout")


@contextmanager
def packed_attention(
    model: PreTrainedModel, attention: GroupedAttention, rectangles: Sequence[Rectangle], cells: Tensor
) -> Iterator[AttentionMask]:
    """Make the model's attention that of the rectangles. Gives the `attention_mask` argument to call it with.

    Args:
        attention: of the model.
        cells: [N] int64, where each token is a query, among the queries of all rectangles, one behind the other.
    """
    implementation = _implementation(attention.config)
    for_groups = implementation == "sdpa" and all(each.tokens.shape[1] <= attention.most_queries for each in rectangles)
    layout = _Layout(rectangles, cells, attention, implementation, for_groups)
    mask = _flat_mask(layout, device=model.device, dtype=model.dtype)
    reset = _LAYOUT.set(layout)
    try:
        with attention_by(_NAME, attention.config):
            yield mask
    finally:
        _LAYOUT.reset(reset)


def _implementation(config: PretrainedConfig) -> str:
    """Return what computes a rectangle. FlexAttention's block masks don't come in rectangles this small; SDPA has no
    soft-capping."""
    if config._attn_implementation == "flex_attention":
        return "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
    return str(config._attn_implementation)


def _flat_mask(layout: _Layout, *, device: torch.device, dtype: torch.dtype) -> AttentionMask:
    """Return the masks of all rectangles, one behind the other, [1, 1, 1, sum of a Q K], or of a `mask_rows` K for groups.

    Each is filled up to a multiple of `_ALIGNED`. They are by layer type where a model mixes them.

    Transformers hands a 4D tensor to the attention function as it is, whatever its shape.
    """
    masks = [
        attention_mask(
            layout.attention.config,
            each.mask_mod_for,
            batch=each.tokens.shape[0],
            queries=each.tokens.shape[1],
            keys=each.slots.shape[1],
            device=device,
            dtype=dtype,
            implementation=layout.implementation,
        )
        for each in layout.rectangles
    ]
    if layout.for_groups:  # once, and not in each layer
        sizes = [each.tokens.shape[1] for each in layout.rectangles]
        masks = [layout.attention.mask(mask, queries=queries) for mask, queries in zip(masks, sizes, strict=True)]

    def flat(parts: Sequence[Any]) -> Tensor:
        return torch.cat([pad(part.flatten(), (0, -part.numel() % _ALIGNED)) for part in parts])[None, None, None]

    if isinstance(masks[0], dict):
        return {kind: flat([mask[kind] for mask in masks if isinstance(mask, dict)]) for kind in masks[0]}
    return flat(masks)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend as Transformers calls it: query [1, H, N, D], and the whole cache as key and value [1, H', slots, D].

    Returns [1, N, H, D].
    """
    layout = _LAYOUT.get()
    base = _attention_function(module, layout)
    queries, keys, values = (each[0].transpose(0, 1) for each in (query, key, value))  # [N or slots, H, D]
    attended, masks = [], attention_mask.flatten()
    mask_rows = layout.attention.mask_rows if layout.for_groups else int
    for each in layout.rectangles:
        (rows, length), width = each.tokens.shape, each.slots.shape[1]
        count = rows * mask_rows(length) * width
        mask, masks = masks[:count], masks[count + -count % _ALIGNED :]
        result, _ = base(
            module,
            _taken(queries, each.tokens, layout),
            _taken(keys, each.slots, layout),
            _taken(values, each.slots, layout),
            mask.view(rows, 1, -1, width),
            **kwargs,
        )  # [a, Q, H, D]
        attended.append(result.flatten(0, 1))
    return torch.cat(attended).index_select(0, layout.cells)[None], None


def _taken(states: Tensor, places: Tensor, layout: _Layout) -> Tensor:
    """Return [a, H, n, D], the states [N, H, D] at `places` [a, n], in this order: nothing copies them again.

    On a CPU `index_select` copies what is contiguous at once, and indexing each number.
    """
    heads = states.shape[1]
    rows = layout.rows.get((id(places), heads))
    if rows is None:
        each = torch.arange(heads, device=places.device)
        rows = layout.rows[id(places), heads] = (places[:, None] * heads + each[:, None]).flatten()
    return states.reshape(-1, states.shape[2]).index_select(0, rows).view(len(places), heads, -1, states.shape[2])


def _attention_function(module: nn.Module, layout: _Layout) -> Callable[..., tuple[Tensor, Any]]:
    if layout.implementation == "eager":  # each model's own, next to its attention layer
        eager: Callable[..., tuple[Tensor, Any]] = sys.modules[type(module).__module__].eager_attention_forward
        return eager
    name = layout.attention.name if layout.implementation == "sdpa" else layout.implementation
    function: Callable[..., tuple[Tensor, Any]] = ALL_ATTENTION_FUNCTIONS[name]
    return function


AttentionInterface.register(_NAME, _attend)
