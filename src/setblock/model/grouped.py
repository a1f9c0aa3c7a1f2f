"""Compute SDPA with grouped queries for decoding, which reads keys and values directly from the cache.

Knows how Transformers calls attention. Knows nothing of blocks.

Under a mask, with more than one query, Transformers' `sdpa` writes the keys and values of the whole cache out anew for each
query head of a group, in every layer of every pass. Here a group's queries become queries of one head instead, [B, H', G Q, D]
with the mask repeated for them: the same products, by the same kernels, of a cache that is not copied. (`enable_gqa` has no
fast kernel on CUDA under a mask.) In half precision on a CPU the attention is `setblock.model.invariant`'s.
"""

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.model.attention import OURS, AttentionMask, attention_by, plan_of
from setblock.model.invariant import added, invariant_attention, is_invariant

GROUPED_SDPA = f"{OURS}grouped_sdpa"


def grouped_attention(model: PreTrainedModel) -> AbstractContextManager[None]:
    """Replace the attention of a model whose plan allows it by the one below; other models keep theirs."""
    return attention_by(GROUPED_SDPA, model.config.get_text_config()) if plan_of(model).grouped else nullcontext()


def _grouped_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend as Transformers calls it: query [B, H, Q, D], key and value [B, H', K, D], mask [B, 1, Q, K]. Returns [B,
    Q, H, D].

    Transformers' `sdpa` is left what is not plain masked attention, and so many queries that their masks outweigh the keys.
    """
    (batch, heads, queries, size), groups = query.shape, key.shape[1]
    of_group = heads // groups  # G
    is_plain = not dropout and all(kwargs.get(name) is None for name in _SPECIAL)
    must_be_invariant = is_invariant(query.dtype, query.device)
    gains = of_group > 1 or must_be_invariant
    if (
        not gains
        or attention_mask is None
        or attention_mask.shape[1] > 1
        or not is_plain
        or queries > _most(groups, size)
    ):
        if attention_mask is not None and attention_mask.shape[2] > queries:  # was made for a group
            attention_mask = attention_mask[:, :, :queries].to(query.dtype)
        result: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    query, mask = query.reshape(batch, groups, of_group * queries, size), attention_mask
    if mask.shape[2] != of_group * queries:
        mask = mask[:, :, :queries].repeat(1, 1, of_group, 1)
    if must_be_invariant:
        attended = invariant_attention(query, key, value, mask, scale=size**-0.5 if scaling is None else scaling)
    else:
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    # [B, H', G Q, D]
    return attended.view(batch, heads, queries, -1).transpose(1, 2).contiguous(), None


def mask_of_groups(model: PreTrainedModel, mask: AttentionMask, *, queries: int) -> AttentionMask:
    """Return the mask [B, 1, G Q, K] of a group's queries, made once for a pass; else the attention makes it in every
    layer.

    Only where that attention is invariant, and adds its mask in float32. Elsewhere, and with too many queries, the mask is
    left as it is. A layer with other groups takes the first Q.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", 1)
    groups = getattr(config, "num_key_value_heads", None) or heads
    size = getattr(config, "head_dim", None) or getattr(config, "hidden_size", 0) // heads
    if not (plan_of(model).grouped and is_invariant(model.dtype, model.device)) or queries > _most(groups, size):
        return mask

    def repeated(part: Tensor) -> Tensor:
        return added(part).repeat(1, 1, heads // groups, 1)

    if isinstance(mask, dict):
        return {kind: repeated(part) for kind, part in mask.items() if isinstance(part, Tensor)}
    return repeated(mask) if isinstance(mask, Tensor) else mask


def _most(groups: int, size: int) -> int:
    """Return the queries up to which writing each head's mask [Q, K] is cheaper than writing keys and values [H', K,
    D]."""
    return 2 * groups * size


_SPECIAL = ("position_bias", "softcap", "cache")
"""Arguments by which Transformers' `sdpa` does something else."""

AttentionInterface.register(GROUPED_SDPA, _grouped_sdpa)
