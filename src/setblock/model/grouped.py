"""SDPA with grouped queries, for decoding: keys and values are read where they stand in the cache.

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

from setblock.model.attention import OURS, attention_by, plan_of
from setblock.model.invariant import invariant_attention, is_invariant

GROUPED_SDPA = f"{OURS}grouped_sdpa"


def grouped_attention(model: PreTrainedModel) -> AbstractContextManager[None]:
    """While active, a model whose attention plan allows it has the one below in its place; others keep theirs."""
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
    """What Transformers calls: query [B, H, Q, D], key and value [B, H', K, D], mask [B, 1, Q, K]. Returns [B, Q, H, D].

    Transformers' `sdpa` is left what is not plain masked attention, and so many queries that their masks outweigh the keys.
    """
    (batch, heads, queries, size), groups = query.shape, key.shape[1]
    is_plain = not dropout and all(kwargs.get(name) is None for name in _SPECIAL)
    copies_less = queries <= 2 * groups * size  # [Q, K] for each head of a group, against [H', K, D] keys and values
    must_be_invariant = is_invariant(query.dtype, query.device)
    gains = heads > groups or must_be_invariant
    if not gains or attention_mask is None or attention_mask.shape[1] > 1 or not is_plain or not copies_less:
        result: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    of_group = heads // groups  # G
    query, mask = query.reshape(batch, groups, of_group * queries, size), attention_mask.repeat(1, 1, of_group, 1)
    if must_be_invariant:
        attended = invariant_attention(query, key, value, mask, scale=size**-0.5 if scaling is None else scaling)
    else:
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    # [B, H', G Q, D]
    return attended.view(batch, heads, queries, -1).transpose(1, 2).contiguous(), None


_SPECIAL = ("position_bias", "softcap", "cache")
"""Arguments by which Transformers' `sdpa` does something else."""

AttentionInterface.register(GROUPED_SDPA, _grouped_sdpa)
