"""Compute SDPA with grouped queries for decoding, which reads keys and values directly from the cache.

Knows how Transformers calls attention. Knows nothing of blocks.

Under a mask, with more than one query, Transformers' `sdpa` writes the keys and values of the whole cache out anew for each
query head of a group, in every layer of every pass. Here a group's queries become queries of one head instead, [B, H', G Q, D]
with the mask repeated for them: the same products, by the same kernels, of a cache that is not copied. (`enable_gqa` has no
fast kernel on CUDA under a mask.) In half precision on a CPU the attention is `setblock.model.attention.invariant`'s.
"""

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.model.attention.attention import OURS, AttentionMask, attention_by, layer_windows, plan_of
from setblock.model.attention.invariant import added, invariant_attention, is_invariant
from setblock.model.protocol.feed import PROMPT_PART

GROUPED_SDPA = f"{OURS}grouped_sdpa"


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
    """Attend as Transformers asks: query [B, H, Q, D], key and value [B, H', K, D], mask [B, 1, Q, K] or `SEES_ALL`. Returns
    [B, Q, H, D].

    Transformers' `sdpa` is left what is not plain masked attention, and so many queries that their masks outweigh the keys
    (`_most`).
    """
    (batch, heads, queries, size), groups = query.shape, key.shape[1]
    is_plain = not dropout and all(kwargs.get(name) is None for name in _SPECIAL)
    if attention_mask is not None and attention_mask.shape[-1] == 0:
        if is_plain:
            together = query.reshape(batch, groups, -1, size)
            attended = torch.nn.functional.scaled_dot_product_attention(together, key, value, scale=scaling)
            return attended.view(batch, heads, queries, -1).transpose(1, 2).contiguous(), None
        attention_mask = query.new_zeros((1, 1, queries, key.shape[2]))
    of_group = heads // groups  # G
    must_be_invariant = is_invariant(query.dtype, query.device)
    gains = of_group > 1 or must_be_invariant
    if (
        not gains
        or attention_mask is None
        or attention_mask.shape[1] > 1
        or not is_plain
        or queries > _most(groups, size, must_be_invariant=must_be_invariant)
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
    if not (must_be_invariant or mask.dtype in (torch.bool, query.dtype)):
        mask = mask.to(query.dtype)
    if must_be_invariant:
        attended = invariant_attention(query, key, value, mask, scale=size**-0.5 if scaling is None else scaling)
    else:
        attended = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling)
    # [B, H', G Q, D]
    return attended.view(batch, heads, queries, -1).transpose(1, 2).contiguous(), None


@dataclass(frozen=True)
class GroupedAttention:
    """Call the attention above in a model's passes, if its plan allows it. A model and its config take long to ask, so each
    runner asks once.

    Attributes:
        config: of the text model.
        is_used: whether the model's attention plan allows it; others keep theirs.
        needs_masks: whether a pass whose queries see every key needs a mask; else `SEES_ALL` says so.
        of_group: G, query heads that share a key head.
        most_queries: with more, a mask is left as it is.
        dtype: of what is added to the scores.
    """

    config: PretrainedConfig
    is_used: bool
    needs_masks: bool
    of_group: int
    most_queries: int
    dtype: torch.dtype

    def active(self) -> AbstractContextManager[None]:
        """Have the model's layers call it for a while."""
        return attention_by(GROUPED_SDPA, self.config) if self.is_used else nullcontext()

    def mask(self, mask: AttentionMask, *, queries: int) -> AttentionMask:
        """Return the mask [B, 1, G Q, K] that is added to the scores of a group's queries, of a mask [B, 1, Q, K] of where they
        may look; or those of each layer type. Else every layer makes it. A layer with other groups takes the first Q."""
        if queries > self.most_queries:
            return mask
        if isinstance(mask, dict):
            return {kind: self._repeated(part) for kind, part in mask.items() if isinstance(part, Tensor)}
        return self._repeated(mask) if isinstance(mask, Tensor) else mask

    def _repeated(self, mask: Tensor) -> Tensor:
        mask = added(mask).to(self.dtype)
        return mask.expand(-1, -1, self.of_group, -1) if mask.shape[2] == 1 else mask.repeat(1, 1, self.of_group, 1)


SEES_ALL = (1, 1, 1, 0)
"""The shape of a mask that leaves nothing out. Where Transformers is given none, it makes one of its own."""


def grouped_attention(model: PreTrainedModel) -> GroupedAttention:
    """Return how a model's passes call it."""
    config, is_used = model.config.get_text_config(), plan_of(model).grouped
    # Where layers differ in size, one stands for all: a layer with other groups takes the first Q of the mask
    layer = config.per_layer_config[0] if getattr(config, "is_heterogeneous", False) else config
    heads = getattr(layer, "num_attention_heads", 1)
    groups = getattr(layer, "num_key_value_heads", None) or heads
    size = getattr(layer, "head_dim", None) or getattr(layer, "hidden_size", 0) // heads
    must_be_invariant = is_invariant(model.dtype, model.device)
    most = _most(groups, size, must_be_invariant=must_be_invariant)
    return GroupedAttention(
        config,
        is_used=is_used,
        needs_masks=not is_used or must_be_invariant or set(layer_windows(config).values()) != {None},
        of_group=heads // groups,
        most_queries=most if is_used and (heads > groups or must_be_invariant) else 0,
        dtype=torch.float32 if must_be_invariant else model.dtype,
    )


def _most(groups: int, size: int, *, must_be_invariant: bool) -> int:
    """Return the queries for which the mask [Q, K] of each head of a group is less to write than keys and values [H', K, D].

    Where a token must get the same bits in each pass, these are all but a whole part of a prompt, which is never padded.
    """
    return PROMPT_PART - 1 if must_be_invariant else 2 * groups * size


_SPECIAL = ("position_bias", "softcap", "cache")
"""Arguments by which Transformers' `sdpa` does something else."""

AttentionInterface.register(GROUPED_SDPA, _grouped_sdpa)
