"""Run passes of a batch whose rows stay together: inputs padded to one rectangle, one row of the cache for each.

Knows how a feed becomes the model's arguments.
"""

from contextlib import nullcontext

import torch
from torch import Tensor
from transformers import PreTrainedModel

from setblock import devices
from setblock.masks import decode_mask
from setblock.model.adapter.gate import block_only, gate_of
from setblock.model.attention.attention import AttentionMask, mask_form
from setblock.model.attention.grouped import SEES_ALL, grouped_attention
from setblock.model.attention.invariant import CHUNK, is_invariant, least_rows
from setblock.model.protocol.feed import Feed
from setblock.model.protocol.language_model import Compile, as_it_is
from setblock.model.runners.cache import SlotCache
from setblock.model.runners.compiled import CompiledModel
from setblock.model.runners.forward import keep_hook, logits_at


class PaddedRunner:
    """See `setblock.model.protocol.language_model.Runner`."""

    fuses_commit = True
    pads = True

    def __init__(self, model: PreTrainedModel, cache: SlotCache, *, compiled: CompiledModel | None = None) -> None:
        self.cache = cache
        self._model, self._compiled = model, compiled
        # A model and its config take long to ask, so they are asked once
        config, device, dtype = model.config.get_text_config(), model.device, model.dtype
        self._least, self._is_invariant = least_rows(dtype, device), is_invariant(dtype, device)
        most = max(cache.batch, 2 * cache.capacity)  # a pass of padding feeds twice a block
        self._form = mask_form(config, device=device, dtype=dtype, most=most)
        self._attention = grouped_attention(model)
        keep_hook(model)
        self._has_gate = gate_of(model) is not None
        self._sees_all = torch.empty(SEES_ALL, dtype=dtype, device=device)

    @property
    def fixed_keys(self) -> int | None:
        """Return the cache's capacity where the model is compiled."""
        return None if self._compiled is None else self.cache.capacity

    @property
    def compiled(self) -> Compile:
        """See `setblock.model.protocol.language_model.Runner`."""
        return as_it_is if self._compiled is None else self._compiled.function

    def logits(self, feed: Feed) -> Tensor:
        """Run one pass over [A, Q] tokens."""
        if feed.tokens.numel() < self._least:
            feed = feed.padded()
        (rows, queries), visible = feed.tokens.shape, feed.plan.visible
        if self._is_invariant:  # whole chunks of keys need no copy
            visible = min(-(-visible // CHUNK) * CHUNK, self.cache.capacity)
        everyone = feed.plan.has_all
        self.cache.write_to(
            rows=None if everyone else feed.plan.rows,
            slots=feed.positions if feed.plan.is_full else feed.positions.where(feed.is_real, self.cache.capacity),
            visible=visible,
        )
        outputs = feed.outputs  # [A, m]
        if rows > 1:
            places = feed.plan.rows if everyone else torch.arange(rows, device=feed.plan.rows.device)
            outputs = outputs.add(places[:, None], alpha=queries)
        compiled = self._compiled if feed.plan.is_fixed else None
        # To ask how many are wanted takes longer than the head where it is a wait; and it never gets less than one.
        takes_all = feed.plan.is_fixed or outputs.numel() == 1 or devices.waits(outputs.device)
        index = outputs.flatten() if takes_all else outputs[feed.wanted]
        # Compiled passes of one token are without an adapter, all others with it, so that each size is compiled once.
        is_fixed = compiled is not None and queries > self._least
        gate = block_only(self._model, feed.in_block, is_fixed=is_fixed) if self._has_gate else nullcontext()
        with gate, self._attention.active():
            logits = logits_at(
                self._model,
                index if index.shape[0] else outputs[0, :1],  # not every kernel takes none
                input_ids=feed.tokens,
                position_ids=feed.positions,
                attention_mask=self._mask(feed, visible=visible),
                cache=self.cache,
                wrapped=None if compiled is None else compiled.model,
                least=self._least,
            )
        logits = logits.float()[: index.shape[0]]
        return logits.view(*outputs.shape, -1) if index.shape[0] == outputs.numel() else logits

    def _mask(self, feed: Feed, *, visible: int) -> AttentionMask:
        if feed.plan.sees_all and not self._attention.needs_masks:
            return self._sees_all
        (rows, queries), limits = feed.tokens.shape, feed.limits
        mask = self._form.mask(
            lambda window: decode_mask(position_ids=feed.positions, limits=limits, window=window),
            batch=rows,
            queries=queries,
            keys=visible,
        )
        return self._attention.mask(mask, queries=queries)
