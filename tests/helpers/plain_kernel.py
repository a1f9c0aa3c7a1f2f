"""PyTorch's operations in the place of the kernel that reads logits once."""

from torch import Tensor

from setblock.decoding.step.certainty import certainty_of
from setblock.decoding.step.choice import Draws, choose_tokens
from setblock.decoding.step.logits import Reading, most_likely


def plain_kernel(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Reading:
    """See `choice.Kernel`."""
    best, everywhere = most_likely(logits), positions >= 0
    certainty = certainty_of(logits, best.logits, everywhere, in_tiles=False)
    draws = Draws(temperatures, None, None, None, seeds, is_greedy=False)
    return Reading(best, certainty, choose_tokens(logits, draws, positions=positions, best=best.token_ids))


def of_other_noise(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Reading:
    """A kernel that draws other tokens, as if its rounding were far off."""
    return plain_kernel(logits, temperatures, seeds + 1000, positions)
