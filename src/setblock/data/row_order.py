"""Order the rows of an epoch. Knows numbers of rows, and nothing of what is in them."""

import itertools
from collections.abc import Iterator

import torch
from torch.utils.data import Sampler

_AT_ONCE = 4096  # rows as Python integers, which take ten times the memory


class RowOrder(Sampler[int]):
    """Draw an order of all rows from a seed and the number of the epoch: the order of Accelerate's `SeedableRandomSampler`.

    That makes a list of all rows, half a GB in each process for ten million. This holds 4 bytes a row.
    """

    def __init__(self, rows: int, *, seed: int) -> None:
        self.rows = rows
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return self.rows

    def set_epoch(self, epoch: int) -> None:
        """Draw the order of another epoch from now on."""
        self.epoch = epoch

    def __iter__(self) -> Iterator[int]:
        generator = torch.Generator().manual_seed(self.seed + self.epoch)
        dtype = torch.int32 if self.rows < 1 << 31 else torch.int64
        order = torch.randperm(self.rows, generator=generator, dtype=dtype)
        parts = (order[start : start + _AT_ONCE] for start in range(0, self.rows, _AT_ONCE))
        return itertools.chain.from_iterable(part.tolist() for part in parts)
