"""Run passes of a batch whose rows stay together: inputs padded to one rectangle, one row of the cache for each.

Knows how a feed becomes the model's arguments.
"""

from functools import partial

import torch
from torch import Tensor
from transformers import PreTrainedModel

from setblock import devices
from setblock.masks import decode_mask
from setblock.model.attention import attention_mask
from setblock.model.cache import SlotCache
from setblock.model.compiled import CompiledModel
from setblock.model.feed import Feed
from setblock.model.forward import logits_at
from setblock.model.gate import block_only
from setblock.model.grouped import grouped_attention, mask_of_groups
from setblock.model.invariant import CHUNK, is_invariant, least_rows
from setblock.model.protocol import Compile, as_it_is


class PaddedRunner:
    """See `setblock.model.protocol.Runner`."""

    fuses_commit = True

    def __init__(self, model: PreTrainedModel, cache: SlotCache, *, compiled: CompiledModel | None = None) -> None:
        self.cache = cache
        self._model, self._compiled = model, compiled

    @property
    def fixed_keys(self) -> int | None:
        """Return the cache's capacity where the model is compiled."""
        return None if self._compiled is None else self.cache.capacity

    @property
    def compiled(self) -> Compile:
        """See `setblock.model.protocol.Runner`."""
        return as_it_is if self._compiled is None else self._compiled.function

    def logits(self, feed: Feed) -> Tensor:
        """Run one pass over [A, Q] tokens."""
        model = self._model
        least = least_rows(model.dtype, model.device)
        if feed.tokens.numel() < least:
            feed = feed.padded()
        (rows, queries), visible = feed.tokens.shape, feed.visible
        if is_invariant(model.dtype, model.device):  # whole chunks of keys need no copy
            visible = min(-(-visible // CHUNK) * CHUNK, self.cache.capacity)
        everyone = rows == feed.batch
        self.cache.write_to(
            rows=None if everyone else feed.rows,
            slots=feed.positions if feed.is_full else feed.positions.masked_fill(~feed.is_real, self.cache.capacity),
            visible=visible,
        )
        mask = attention_mask(
            model.config.get_text_config(),
            lambda window: decode_mask(position_ids=feed.positions, limits=feed.limits, window=window),
            batch=rows,
            queries=queries,
            keys=visible,
            device=model.device,
            dtype=model.dtype,
        )
        outputs = feed.outputs  # [A, m]
        if rows > 1:
            places = feed.rows if everyone else torch.arange(rows, device=feed.rows.device)
            outputs = outputs.add(places[:, None], alpha=queries)
        compiled = self._compiled if feed.is_fixed else None
        forward = compiled.logits_at if compiled else partial(logits_at, model)
        # To ask how many are wanted takes longer than the head where it is a wait.
        takes_all = feed.is_fixed or devices.waits(outputs.device)
        index = outputs.flatten() if takes_all else outputs[feed.wanted]
        # Compiled passes of one token are without an adapter, all others with it, so that each size is compiled once.
        is_fixed = compiled is not None and queries > least
        with block_only(model, feed.in_block, is_fixed=is_fixed), grouped_attention(model):
            logits = forward(
                index if len(index) else outputs[0, :1],  # not every kernel takes none
                input_ids=feed.tokens,
                position_ids=feed.positions,
                attention_mask=mask_of_groups(model, mask, queries=queries),
                cache=self.cache,
            )
        logits = logits.float()[: len(index)]
        return logits.view(*outputs.shape, -1) if len(index) == outputs.numel() else feed.spread(logits)
