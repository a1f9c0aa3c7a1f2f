"""A kernel in the place of the one that reads logits once."""

from torch import Tensor

from setblock.decoding.step.logits import Reading
from setblock.decoding.step.reading import read_by_operations


def of_other_noise(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Reading:
    """Draw other tokens than PyTorch's operations, as if rounding were far off."""
    return read_by_operations(logits, temperatures, seeds + 1000, positions)
