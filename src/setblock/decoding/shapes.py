"""How large a pass's tensors are: as small as the pass allows, or of few sizes, so that a compiled model meets no new ones.

Knows numbers of rows and positions. Knows nothing of what is in them.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PassShapes:
    """Sizes of one pass's tensors.

    Attributes:
        fixed: whether sizes are to be the same in every pass of a kind, at the price of padding.
        block_size: k, the largest of the batch.
        capacity: positions a row of the cache has.
    """

    fixed: bool
    block_size: int
    capacity: int

    def rows(self, unfinished: Tensor) -> Tensor:
        """[A] indices of the rows that are fed, of `unfinished` [B] bool: those, or all of them."""
        return torch.arange(len(unfinished), device=unfinished.device) if self.fixed else unfinished.nonzero()[:, 0]

    def queries(self, needed: int) -> int:
        """Q, tokens that are fed in each row: `needed`, or a block, or a block that is committed and the next one."""
        if not self.fixed:
            return needed
        return self.block_size if needed <= self.block_size else 2 * self.block_size

    def checked(self, needed: int) -> int:
        """m, outputs at which drafts are checked: `needed`, or none, or all that a block may need."""
        return self.block_size - 1 if self.fixed and needed else needed

    def keys(self, needed: int) -> int:
        """Slots of the cache that are read: `needed`, or all of them."""
        return self.capacity if self.fixed else needed


def fixed_capacity(needed: int) -> int:
    """Positions to allocate where sizes are fixed: few values for requests of many lengths."""
    return max(_SMALLEST_CAPACITY, 1 << (needed - 1).bit_length())


_SMALLEST_CAPACITY = 256
