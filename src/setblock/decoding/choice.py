"""Which token a position gets: argmax at temperature 0, else a draw.

Knows logits, temperatures and seeds. Knows nothing of which positions are revealed.

A draw is Gumbel-max with noise that is a pure function of (seed, position, token id). So a request's tokens do not
depend on what shares its batch, nor on how many passes its block takes. Which positions a pass reveals depends on the
distributions only, never on the noise, so a position's noise is still independent of all it is conditioned on when it is
used, and the draw is exact.
"""

import torch
from torch import Tensor


def choose_tokens(logits: Tensor, *, temperature: Tensor, seeds: Tensor, positions: Tensor) -> Tensor:
    """Choose a token for each position.

    Args:
        logits: [B, k, V] float32.
        temperature: [B] float32, at least 0; 0 is exactly argmax (the smallest id of a tie).
        seeds: [B] int64.
        positions: [B, k] int64, absolute.

    Returns:
        [B, k] int64 token ids.
    """
    greedy = logits.argmax(dim=-1)
    if not bool((temperature > 0).any()):
        return greedy
    scaled = logits / temperature.clamp(min=1e-6)[:, None, None]
    token_ids = torch.arange(logits.shape[-1], device=logits.device)
    uniform = keyed_uniform(seeds[:, None, None], positions[:, :, None], token_ids)
    exponential = -torch.log1p(-uniform)  # the smallest of exponential / probability is a draw
    sampled = (scaled - exponential.log()).argmax(dim=-1)
    return torch.where(temperature[:, None] > 0, sampled, greedy)


def keyed_uniform(*keys: Tensor) -> Tensor:
    """Float32 numbers in (0, 1) that depend on the broadcast integer keys alone, by SplitMix64's mixing function."""
    state = torch.zeros((), dtype=torch.int64, device=keys[0].device)
    for key in keys:
        state = _mix(state + key + _GOLDEN)
    # 63 bits: numbers near 0 decide which of many tokens is drawn, so they must not be coarse. Rounding may give 1.
    uniform = (_shift_right(state, 1).float() + 0.5) * 2.0**-63
    return uniform.clamp(max=1 - 2.0**-24)


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer; int64 arithmetic wraps around


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift_right(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Logical shift: int64's own is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
