"""The paged cache of passes of static shape: written in place, and read where it is."""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

from setblock.model.runners.forward import FixedLayer


def write_pages(pages: Tensor, states: Tensor, slots: Tensor) -> None:
    """Write states [R, H', Q, D] to slots [R, Q] int64 of a layer's keys or values [P, page, H', D], in place. Of several
    states with one slot any is written: padding has the slots of a page that nobody reads."""
    pages.flatten(0, 1).index_copy_(0, slots.flatten(), states.transpose(1, 2).flatten(0, 1))


class PageLayer(FixedLayer):
    """One layer [P, page, H', D] of a `PageCache`."""

    def __init__(self, *, pages: int, page_tokens: int) -> None:
        super().__init__(batch=pages, slots=page_tokens, visible=pages * page_tokens)

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the pages for states like [R, H', Q, D]."""
        self.keys, self.values = (
            each.new_zeros((self.batch, self.capacity, each.shape[1], each.shape[3]))
            for each in (key_states, value_states)
        )
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [R, H', Q, D] states to their slots; return all pages [P, page, H', D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        key_states, value_states = self.finite(key_states, value_states)
        write_pages(self.keys, key_states, self.written)
        write_pages(self.values, value_states, self.written)
        return self.keys, self.values


class PageCache(Cache):
    """`pages` pages of `page_tokens` positions for each layer, and one more, where padding is written. They are allocated in
    the first pass, which must not be captured: a captured allocation would clear them at each replay."""

    def __init__(self, *, layers: int, pages: int, page_tokens: int) -> None:
        self.pages, self.page_tokens = pages + 1, page_tokens
        super().__init__(layers=[PageLayer(pages=self.pages, page_tokens=page_tokens) for _ in range(layers)])

    @property
    def spill_slot(self) -> int:
        """The slot of padding, in the last page."""
        return (self.pages - 1) * self.page_tokens

    def write_to(self, slots: Tensor, is_real: Tensor) -> None:
        """Set the slot [R, Q] int64 where the next pass writes each token; padding (`is_real` [R, Q] bool) has none."""
        written = torch.where(is_real, slots, self.spill_slot)
        for layer in self.layers:
            layer.written = written

    def clear(self, pages: Tensor) -> None:
        """Fill `pages` [n] int64 with zeros, for attention that needs finite pages."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys.index_fill_(0, pages, 0)
                layer.values.index_fill_(0, pages, 0)
