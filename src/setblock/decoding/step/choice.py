"""Choose the token of a position: argmax at temperature 0, else a draw.

Knows logits, temperatures, cuts and seeds. Knows nothing of which positions are revealed.

A draw is Gumbel-max with noise that is a pure function of (seed, position, token id). So a request's tokens do not
depend on what shares its batch, nor on how many passes its block takes. Which positions a pass reveals depends on the
distributions only, never on the noise, so a position's noise is still independent of all it is conditioned on when it is
used, and the draw is exact.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from setblock.decoding.settings.table import DecodingSettings


@dataclass(frozen=True)
class Draws:
    """Hold how each row of a batch draws its tokens.

    Attributes:
        temperature: [B] float32, at least 0; 0 is exactly argmax (the smallest id of a tie).
        top_k: [B] int64 (V where there is none), or None where no row has one. So with the following two.
        top_p: [B] float32.
        min_p: [B] float32.
        seeds: [B] int64.
        is_greedy: whether all temperatures are 0.
    """

    temperature: Tensor
    top_k: Tensor | None
    top_p: Tensor | None
    min_p: Tensor | None
    seeds: Tensor
    is_greedy: bool

    def taken(self, rows: Tensor) -> "Draws":
        """Return the draws of `rows` [n] only."""
        return Draws(
            temperature=self.temperature[rows],
            top_k=None if self.top_k is None else self.top_k[rows],
            top_p=None if self.top_p is None else self.top_p[rows],
            min_p=None if self.min_p is None else self.min_p[rows],
            seeds=self.seeds[rows],
            is_greedy=self.is_greedy,
        )


def draws_of(settings: Sequence[DecodingSettings], *, vocab_size: int, device: torch.device) -> Draws:
    """Return the draws of a batch of requests."""
    temperature = torch.tensor([each.temperature for each in settings], device=device, dtype=torch.float32)
    top_k = [min(each.top_k or vocab_size, vocab_size) for each in settings]
    return Draws(
        temperature=temperature,
        top_k=torch.tensor(top_k, device=device) if min(top_k) < vocab_size else None,
        top_p=_unless_all([each.top_p for each in settings], 1.0, device),
        min_p=_unless_all([each.min_p for each in settings], 0.0, device),
        seeds=torch.tensor([each.seed for each in settings], device=device, dtype=torch.long),
        is_greedy=all(each.temperature == 0 for each in settings),
    )


def _unless_all(values: list[float], off: float, device: torch.device) -> Tensor | None:
    return None if all(value == off for value in values) else torch.tensor(values, device=device, dtype=torch.float32)


def choose_tokens(logits: Tensor, draws: Draws, *, positions: Tensor, best: Tensor | None = None) -> Tensor:
    """Choose a token for each position.

    Args:
        logits: [B, k, V] float32.
        positions: [B, k] int64, absolute.
        best: [B, k] int64, the token of the greatest logit (the smallest id of a tie), where it is known already.

    Returns:
        [B, k] int64 token ids.
    """
    greedy = most_likely(logits).token_ids if best is None else best
    if draws.is_greedy:
        return greedy
    scaled = cut(logits / draws.temperature.clamp(min=1e-6, max=1e30)[:, None, None], draws)
    token_ids = torch.arange(logits.shape[-1], device=logits.device)
    uniform = keyed_uniform(draws.seeds[:, None, None], positions[:, :, None], token_ids)
    exponential = -torch.log1p(-uniform)  # the smallest of exponential / probability is a draw
    sampled = (scaled - exponential.log()).argmax(dim=-1)
    return torch.where(draws.temperature[:, None] > 0, sampled, greedy)


class MostLikely(NamedTuple):
    """Hold the greatest logits [...] float32 and their tokens [...] int64, the smallest id of a tie."""

    logits: Tensor
    token_ids: Tensor


def most_likely(logits: Tensor) -> MostLikely:
    """Return the greatest of logits [..., V] and its token. Where they are not all numbers, the greatest isn't one
    either."""
    return MostLikely(*logits.max(dim=-1))  # argmax is three times as slow on CPUs; both take the first of a tie


def cut(scaled: Tensor, draws: Draws) -> Tensor:
    """Return logits [B, k, V] with -inf for tokens that top-k, then top-p, then min-p leave out. The most likely token
    always stays.

    Of tokens exactly as likely as the last that top-k lets in, all stay; top-p takes those of smaller id first.
    """
    if draws.top_k is not None:
        rank = (draws.top_k - 1)[:, None, None].expand(*scaled.shape[:2], 1)
        least = scaled.sort(dim=-1, descending=True).values.gather(-1, rank)
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    if draws.top_p is not None:
        ordered, order = scaled.sort(dim=-1, descending=True, stable=True)
        probs = ordered.softmax(dim=-1)
        before = probs.cumsum(dim=-1) - probs  # the probability of all that are more likely
        out = (before >= draws.top_p[:, None, None]) & (draws.top_p < 1)[:, None, None]
        out[..., 0] = False
        scaled = scaled.masked_fill(torch.zeros_like(out).scatter(-1, order, out), -torch.inf)
    if draws.min_p is not None:
        least = scaled.amax(dim=-1, keepdim=True) + draws.min_p.log()[:, None, None]
        scaled = scaled.masked_fill(scaled < least, -torch.inf)
    return scaled


def keyed_uniform(*keys: Tensor) -> Tensor:
    """Return float32 numbers in (0, 1) that depend only on the broadcast integer keys, by SplitMix64's mixing function."""
    state = torch.zeros((), dtype=torch.int64, device=keys[0].device)
    for key in keys:
        state = _mix(state + key + _GOLDEN)
    # 63 bits: numbers near 0 decide which of many tokens is drawn, so they must not be coarse. Rounding may give 1.
    uniform = (_shift_right(state, 1).float() + 0.5) * 2.0**-63
    return uniform.clamp(max=1 - 2.0**-24)


def random_tokens(seeds: Tensor, positions: Tensor, *, vocab_size: int) -> Tensor:
    """Return uniform noise [B, n], int64 token ids below `vocab_size`, for `positions` [B, n] of rows with `seeds` [B].

    A position's noise is the same in each pass and each batch, and independent of that which its token is drawn with.
    """
    no_token = torch.full_like(positions, -1)
    return (keyed_uniform(seeds[:, None], positions, no_token) * vocab_size).long()


_GOLDEN = -7046029254386353131  # 0x9E3779B97F4A7C15 as a signed integer; int64 arithmetic wraps around


def _mix(z: Tensor) -> Tensor:
    z = (z ^ _shift_right(z, 30)) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    z = (z ^ _shift_right(z, 27)) * -7723592293110705685  # 0x94D049BB133111EB
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, bits: int) -> Tensor:
    """Shift the bits right logically: int64's own shift is arithmetic."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)
