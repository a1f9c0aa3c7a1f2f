"""Rows of different widths below one another."""

from collections.abc import Sequence

import torch
from torch import Tensor


def stacked(parts: Sequence[Tensor], *, fill: float = 0) -> Tensor:
    """[sum of the B, ...] the rows of `parts` [B, ...], which differ in B and, at most, in the second dimension: the narrower
    are filled up on the right."""
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([fitted(part, width, fill=fill) for part in parts])


def fitted(part: Tensor, width: int, *, fill: float = 0) -> Tensor:
    """[B, width, ...] of `part` [B, n, ...]: cut off, or filled up, on the right."""
    missing = max(0, width - part.shape[1])
    filling = part.new_full((part.shape[0], missing, *part.shape[2:]), fill)
    return torch.cat([part[:, :width], filling], dim=1)  # PyTorch 2.9 pads no tensor whose last dimension is empty
