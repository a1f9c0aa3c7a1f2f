"""The paper's tables 3 and 4, of any times of passes.

Knows which cells there are, not what they are computed from.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from setblock.roofline.prediction import PassTimes, block_speedup, slowdown

BLOCK_SIZES = (2, 4, 8, 16, 32, 64)
NFE_SPEEDUPS = (2, 4, 8)
BATCHES = (1, 4, 8, 16, 32)
BLOCK_SIZE, KV_LENGTH = 16, 1024  # of table 4, and of both tables where nothing else is asked for

# The rows that the paper prints.
PRINTED_SLOWDOWN_BATCHES = (1, 4, 8, 16)
PRINTED_SPEEDUP_BATCHES = (1, 4, 8)


@dataclass(frozen=True)
class Tables:
    """Batch -> block size -> slowdown of a block pass; batch -> NFE speed-up -> speed-up in seconds."""

    slowdown: dict[int, dict[int, float]]
    speedup: dict[int, dict[int, float]]


def tables(
    times: PassTimes,
    *,
    kv_length: int = KV_LENGTH,
    block_size: int = BLOCK_SIZE,
    slowdown_batches: Sequence[int] = BATCHES,
    speedup_batches: Sequence[int] = BATCHES,
) -> Tables:
    """Both tables; `block_size` is the second one's, and NFE speed-ups that it can't give are left out."""
    at = {"kv_length": kv_length}
    return Tables(
        {b: {k: slowdown(times, k, batch=b, **at) for k in BLOCK_SIZES} for b in slowdown_batches},
        {
            b: {
                nfe: block_speedup(times, nfe, block_size=block_size, batch=b, **at)
                for nfe in NFE_SPEEDUPS
                if nfe <= block_size
            }
            for b in speedup_batches
        },
    )
