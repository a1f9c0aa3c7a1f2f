"""SDPA with grouped queries for decoding, which reads keys and values directly from the cache.

Under a mask, with more than one query, Transformers' `sdpa` copies the keys and values of the whole cache for each query head
of a group, in every layer of every pass. Here a group's queries become queries of one head instead, [B, H', G Q, D], with the
mask repeated for them: the same products by the same kernels, without the copy. (`enable_gqa` has no fast kernel on CUDA under
a mask.)

A mask of None means that each query sees every key. Transformers makes no mask for attention functions that are not its own,
so None arrives here as given.

In half precision on a CPU, a query gets the same bits whatever else shares its pass (`invariant_attention`).
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import AttentionInterface, PretrainedConfig, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.masks import added
from setblock.model.attention.attention import OURS, layer_windows, plan_of
from setblock.model.attention.invariant import CHUNK, ROWS, invariant_attention, sdpa_keeps_bits
from setblock.model.protocol.runtime import PROMPT_PART
from setblock.model.weights import PrepackedLinear, is_invariant

GROUPED_SDPA, INVARIANT_SDPA = f"{OURS}grouped_sdpa", f"{OURS}invariant_sdpa"
"""Names under which the attention functions below are registered with Transformers."""


def grouped_sdpa(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    must_be_invariant: bool = False,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Compute attention by Transformers' interface: query [B, H, Q, D], key and value [B, H', K, D], mask [B, 1, Q, K] or
    [B, 1, G Q, K], or None where each query sees every key. Return [B, Q, H, D].

    G query heads share each of the H' key heads. Transformers' `sdpa` is called instead for dropout, soft-capping, a position
    bias, a mask for each head, or more than `_most` queries, whose masks would be larger than the keys. With
    `must_be_invariant` a query gets the same bits whatever shares its pass, and more than `_MOST_INVARIANT` queries run head
    by head, with one mask.
    """
    (batch, heads, queries, size), groups = query.shape, key.shape[1]
    of_group = heads // groups  # G
    # Arguments by which Transformers' `sdpa` does something else
    is_plain = not dropout and all(kwargs.get(name) is None for name in ("position_bias", "softcap", "cache"))
    if attention_mask is None and not is_plain:
        attention_mask = query.new_zeros((1, 1, queries, key.shape[2]))
    if attention_mask is not None and (
        attention_mask.shape[1] > 1
        or not is_plain
        or (not must_be_invariant and (of_group == 1 or queries > _most(groups, size)))
    ):
        if attention_mask.shape[2] > queries:  # the mask was made for a group
            attention_mask = attention_mask[:, :, :queries].to(query.dtype)
        result: tuple[Tensor, None] = ALL_ATTENTION_FUNCTIONS["sdpa"](
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs
        )
        return result
    if must_be_invariant and queries > _MOST_INVARIANT:
        heads_of = query.view(batch, groups, of_group, queries, size).unbind(dim=2)
        apart = [invariant_attention(each, key, value, attention_mask, scale=scaling) for each in heads_of]
        return torch.stack(apart, dim=2).reshape(batch, heads, queries, -1).transpose(1, 2).contiguous(), None
    together, mask = query.reshape(batch, groups, of_group * queries, size), attention_mask
    if mask is not None and mask.shape[2] < of_group * queries:
        mask = mask[:, :, :queries].repeat(1, 1, of_group, 1)
    if must_be_invariant:
        attended = invariant_attention(together, key, value, mask, scale=scaling)  # [B, H', G Q, D]
    else:
        mask = mask if mask is None or mask.dtype == torch.bool else mask.to(query.dtype)
        attended = torch.nn.functional.scaled_dot_product_attention(together, key, value, attn_mask=mask, scale=scaling)
    return attended.reshape(batch, heads, queries, -1).transpose(1, 2).contiguous(), None


LEAST_ROWS, LEAST_PREPACKED = 2, 4
"""The least tokens of a pass, and outputs of its head: a product of one row has another kernel. With prepacked weights, one of
two rows takes up to a third longer than one of four."""

MULTIPLE = 8
"""Above the least, tokens of a pass and outputs of its head are a multiple of this, so that new row counts are rare: oneDNN
prepares a product for each new row count, which takes a fifth as long as the product."""


class GroupedAttention:
    """Makes a model's passes call the attention above, if its plan allows it. Reads the config once, since that is slow."""

    def __init__(self, model: PreTrainedModel) -> None:
        self.config, self.dtype = model.config.get_text_config(), model.dtype  # those of the text model
        self.is_used = plan_of(model).grouped  # if not, the model keeps its own attention
        # Where layers differ in size, one is used for all: a layer with other groups takes the first Q rows of the mask
        layer = self.config.per_layer_config[0] if getattr(self.config, "is_heterogeneous", False) else self.config
        heads = getattr(layer, "num_attention_heads", 1)
        groups = getattr(layer, "num_key_value_heads", None) or heads
        size = getattr(layer, "head_dim", None) or getattr(layer, "hidden_size", 0) // heads
        self.of_group: int = heads // groups  # G, the query heads of each key head
        self.is_invariant = is_invariant(model.dtype, model.device)  # a token gets the same bits in each pass
        is_prepacked = any(isinstance(module, PrepackedLinear) for module in model.modules())
        self.least = LEAST_PREPACKED if is_prepacked else LEAST_ROWS
        if self.is_invariant:
            sdpa_keeps_bits(model.dtype, size)
        self.name = INVARIANT_SDPA if self.is_invariant else GROUPED_SDPA  # replaces Transformers' `sdpa`
        # Whether a pass needs a mask even if its queries see every key
        self.needs_masks = not self.is_used or self.is_invariant or {*layer_windows(self.config).values()} != {None}
        repeats = self.is_used and (heads > groups or self.is_invariant)
        # With more queries, a mask is left as it is
        most = _MOST_INVARIANT if self.is_invariant else _most(groups, size)
        self.most_queries = most if repeats else 0

    def active(self) -> AbstractContextManager[None]:
        """While active, the model's layers call this attention."""
        return attention_by(self.name, self.config) if self.is_used else nullcontext()

    def filled(self, count: int) -> int:
        """Return the number of tokens that a pass computes, or of outputs of its head, if `count` are needed."""
        if not self.is_invariant:
            return count
        return max(count, self.least) if count <= MULTIPLE else -(-count // MULTIPLE) * MULTIPLE

    def whole_chunks(self, keys: int) -> int:
        """Return `keys` rounded up to the number that a pass reads: whole chunks are not copied."""
        return -(-keys // CHUNK) * CHUNK if self.is_invariant else keys

    def mask(self, mask: Tensor | BlockMask, *, queries: int) -> Tensor | BlockMask:
        """Return the bias on the scores of a group's queries, [B, 1, `mask_rows`, K], from a bool mask [B, 1, Q, K]. Made here,
        it is not made again in every layer. A layer with other groups takes the first Q rows."""
        if queries > self.most_queries or not isinstance(mask, Tensor):
            return mask
        mask, rows = added(mask).to(self.dtype), self.mask_rows(queries)
        if mask.shape[2] == 1:
            return mask.expand(-1, -1, rows, -1)
        return mask.repeat(1, 1, -(-rows // queries), 1)[:, :, :rows]

    def mask_rows(self, queries: int) -> int:
        """Return the number of rows of a mask for a group's queries: G Q, padded where each token must get the same bits."""
        rows = self.of_group * queries
        return rows + (-rows % ROWS if self.is_invariant else 0)


@contextmanager
def attention_by(name: str, config: PretrainedConfig) -> Iterator[None]:
    """While active, the layers of a model call the attention function `name`; `config` is that of the text model."""
    usual = config._attn_implementation
    config._attn_implementation = name
    try:
        yield
    finally:
        config._attn_implementation = usual


def _most(groups: int, size: int) -> int:
    """Return the most queries for which the masks [Q, K] of a group's heads are smaller than keys and values [H', K, D]."""
    return 2 * groups * size


_MOST_INVARIANT = PROMPT_PART - 1
"""The most queries whose mask is repeated for each head of a group, once for all layers, in batch-invariant attention."""


AttentionInterface.register(GROUPED_SDPA, grouped_sdpa)
AttentionInterface.register(INVARIANT_SDPA, partial(grouped_sdpa, must_be_invariant=True))
