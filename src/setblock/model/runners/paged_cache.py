"""Keep the key-value cache of requests that come and go: slots that any request may be given.

Knows where keys and values are written. Knows nothing of who holds which slot.
"""

from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class PagedCache(Cache):
    """Hold a preallocated cache [slots + 2, H, D] for each layer. One slot more is never written and stays zero: it
    is read wherever a rectangle of keys is wider than a request. Another is never read: padding is written there.

    Before each forward pass `write_to` says in which slots its tokens go; the pass then gets, in every layer, the whole cache.
    """

    def __init__(self, *, layers: int, slots: int) -> None:
        super().__init__(layers=[PagedLayer(slots=slots) for _ in range(layers)])
        self.slots = slots

    @property
    def empty_slot(self) -> int:
        """Return the slot that stays zero."""
        return self.slots

    @property
    def spill_slot(self) -> int:
        """Return the slot that is never read."""
        return self.slots + 1

    def write_to(self, slots: Tensor) -> None:
        """Set the slots [N] of the tokens of the next forward pass."""
        for layer in self.layers:
            layer.written = slots


class PagedLayer(CacheLayerMixin):
    """Hold one layer of a `PagedCache`."""

    is_sliding = False

    def __init__(self, *, slots: int) -> None:
        super().__init__()
        self.slots = slots
        self.written: Tensor | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the slots."""
        for name, states in (("keys", key_states), ("values", value_states)):
            _, heads, _, size = states.shape
            setattr(self, name, states.new_zeros((self.slots + 2, heads, size)))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [1, H, N, D] states to their slots; return all slots, [1, H, slots + 2, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.written is not None
        self.keys[self.written] = key_states[0].transpose(0, 1)
        self.values[self.written] = value_states[0].transpose(0, 1)
        return self.keys.transpose(0, 1)[None], self.values.transpose(0, 1)[None]

    def get_seq_length(self) -> int:
        """Return no meaningful length: each request has its own, and positions are always given to the model."""
        return 0

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and offset of the keys that a pass gets."""
        return self.slots + 2, 0

    def get_max_length(self) -> int:
        """Return the number of slots."""
        return self.slots
