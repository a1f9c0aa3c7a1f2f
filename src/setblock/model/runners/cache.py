"""Keep the key-value cache: one slot for each position of each row.

Knows where keys and values are written. Knows nothing of blocks: a future block's noisy entries are written to the slots
of its positions, where the commit pass writes the exact ones over them, so a noisy entry never outlives its block.
"""

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, CacheLayerMixin


class SlotCache(Cache):
    """Hold a preallocated cache [B, H, capacity, D] for each layer, whose slot s holds the token at position s.

    Before each forward pass `write_to` says which rows and positions its tokens are; the pass then gets, in every layer,
    the first `visible` slots of those rows. What a token may see of them is the attention mask's business.
    """

    def __init__(self, *, layers: int, batch: int, capacity: int) -> None:
        super().__init__(layers=[SlotLayer(batch=batch, capacity=capacity) for _ in range(layers)])
        self.batch, self.capacity = batch, capacity
        self._everyone: Tensor | None = None

    def write_to(self, *, rows: Tensor | None, slots: Tensor, visible: int) -> None:
        """Set where the next forward pass writes.

        Args:
            rows: [A] rows that take part; None for all of them.
            slots: [A, Q] slot of each token; a padding token's is `capacity`, which is never read.
            visible: how many slots, from the first on, the pass reads.
        """
        if self._everyone is None:
            self._everyone = torch.arange(self.batch, device=slots.device)
        written = self._everyone if rows is None else rows
        for layer in self.layers:
            layer.rows, layer.written, layer.slots, layer.visible = rows, written[:, None], slots, visible


class SlotLayer(CacheLayerMixin):
    """Hold one layer of a `SlotCache`."""

    is_sliding = False

    def __init__(self, *, batch: int, capacity: int) -> None:
        super().__init__()
        self.batch, self.capacity = batch, capacity
        self.rows: Tensor | None = None
        self.written: Tensor | None = None
        self.slots: Tensor | None = None
        self.visible = 0

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the slots, and one more where padding is written."""
        for name, states in (("keys", key_states), ("values", value_states)):
            _, heads, _, size = states.shape
            setattr(self, name, states.new_zeros((self.batch, heads, self.capacity + 1, size)))
        self.is_initialized = True

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [A, H, Q, D] states to their slots; return the visible slots [A, H, visible, D] of the same rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        assert self.slots is not None
        if self.batch == 1:
            self.keys.index_copy_(2, self.slots[0], key_states)
            self.values.index_copy_(2, self.slots[0], value_states)
        else:
            where = (self.written, slice(None), self.slots)  # addresses [A, Q, H, D]
            self.keys[where] = key_states.transpose(1, 2)
            self.values[where] = value_states.transpose(1, 2)
        keys, values = self.keys[:, :, : self.visible], self.values[:, :, : self.visible]
        return (keys, values) if self.rows is None else (keys[self.rows], values[self.rows])

    def get_seq_length(self) -> int:
        """Return the slots in use; positions are always given to the model, so that it never needs this to number
        tokens."""
        return self.visible

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and offset of the keys that a pass gets."""
        return self.visible, 0

    def get_max_length(self) -> int:
        """Return the number of slots of a row."""
        return self.capacity
