"""The runner of a batch whose rows stay together: inputs padded to one rectangle, one row of the cache for each.

Knows how a feed becomes the model's arguments.
"""

from functools import partial

import torch
from torch import Tensor

from setblock.decoding.feed import Feed
from setblock.decoding.shapes import PassShapes
from setblock.masks import decode_mask
from setblock.model.attention import attention_mask
from setblock.model.cache import SlotCache
from setblock.model.forward import logits_at
from setblock.model.grouped import grouped_attention
from setblock.model.sbd_model import SBDModel


class PaddedRunner:
    """See `setblock.decoding.feed.Runner`."""

    def __init__(self, model: SBDModel, cache: SlotCache) -> None:
        self.model, self.cache = model, cache

    def shapes(self, *, block_size: int, is_prefill: Tensor) -> PassShapes:
        """Fixed where the model is compiled, but for the prefill: prompts have lengths of all kinds."""
        fixed = self.model.compiled is not None and not bool(is_prefill.any())
        return PassShapes(fixed=fixed, block_size=block_size, capacity=self.cache.capacity)

    def logits(self, feed: Feed) -> Tensor:
        """One pass over [A, Q] tokens."""
        model, (rows, queries) = self.model, feed.tokens.shape
        everyone = rows == feed.batch
        self.cache.write_to(
            rows=None if everyone else feed.rows,
            slots=feed.positions.masked_fill(~feed.is_real, self.cache.capacity),
            visible=feed.visible,
        )
        mask = attention_mask(
            model.model.config.get_text_config(),
            lambda window: decode_mask(position_ids=feed.positions, limits=feed.limits, window=window),
            batch=rows,
            queries=queries,
            keys=feed.visible,
            device=model.device,
            dtype=model.model.dtype,
        )
        outputs = torch.arange(rows, device=feed.rows.device)[:, None] * queries + feed.outputs  # [A, m]
        compiled = model.compiled if feed.is_fixed else None
        forward = compiled.logits_at if compiled else partial(logits_at, model.model)
        index = outputs.flatten() if feed.is_fixed else outputs[feed.wanted]
        with model.block_only(feed.in_block), grouped_attention(model.model):
            logits = forward(
                index if len(index) else outputs[0, :1],  # not every kernel takes none
                input_ids=feed.tokens,
                position_ids=feed.positions,
                attention_mask=mask,
                cache=self.cache,
            )
        logits = logits.float()[: len(index)]
        return logits.view(*outputs.shape, -1) if len(index) == outputs.numel() else feed.spread(logits)
