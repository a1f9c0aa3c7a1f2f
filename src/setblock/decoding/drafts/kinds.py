"""Say of what kind drafted tokens are, as tensors: `chances` counts how often each kind is right.

Knows confidences and lengths of matches. Knows nothing of rows.
"""

import torch
from torch import Tensor

from setblock.decoding.drafts.chances import COPIED, LONGEST_COPY


def kinds_of(confidence: Tensor, bounds: Tensor) -> Tensor:
    """Return [B, k] int64, the kinds of tokens that the model drafted with a `confidence` [B, k] float32: the probability of
    the most likely token. `bounds`: `CONFIDENCES` as a tensor."""
    return torch.bucketize(confidence.contiguous(), bounds, right=True)


def copied_kinds(matched: Tensor, size: int) -> Tensor:
    """Return [B, size] int64, the kinds of the places of drafts that are copied where `matched` [B] tokens match. Where the
    first places are right, more tokens match at those behind them."""
    places = torch.arange(size, device=matched.device)
    return COPIED + (matched[:, None] + places - 2).clamp(0, LONGEST_COPY - 1)
