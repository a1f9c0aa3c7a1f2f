"""Stack rows of different widths."""

from collections.abc import Sequence

import torch
from torch import Tensor


def stacked(parts: Sequence[Tensor], *, fill: float = 0) -> Tensor:
    """Stack `parts` [B, ...] as [sum of all B, ...]; they may differ in B and in the second dimension, which is padded."""
    if parts[0].dim() == 1:
        return torch.cat(list(parts))
    width = max(part.shape[1] for part in parts)
    return torch.cat([fitted(part, width, fill=fill) for part in parts])


def fitted(part: Tensor, width: int, *, fill: float = 0) -> Tensor:
    """Return [B, width, ...] of `part` [B, n, ...], cut or padded on the right."""
    missing = max(0, width - part.shape[1])
    filling = part.new_full((part.shape[0], missing, *part.shape[2:]), fill)
    return torch.cat([part[:, :width], filling], dim=1)  # PyTorch 2.9 pads no tensor whose last dimension is empty
