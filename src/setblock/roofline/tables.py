"""Compute the paper's tables 3 and 4, of any prediction.

Knows which cells there are, not what they are computed from.
"""

from dataclasses import dataclass

from setblock.roofline.prediction import Prediction, block_speedup, slowdown

BLOCK_SIZES = (2, 4, 8, 16, 32, 64)
NFE_SPEEDUPS = (2, 4, 8)
BATCHES = (1, 4, 8, 16, 32)
BLOCK_SIZE, KV_LENGTH = 16, 1024  # of table 4, and of both tables where nothing else is asked for


@dataclass(frozen=True)
class Tables:
    """Hold both tables: batch -> block size -> slowdown of a block pass; batch -> NFE speed-up -> speed-up in seconds."""

    slowdown: dict[int, dict[int, float]]
    speedup: dict[int, dict[int, float]]


def tables(prediction: Prediction, *, kv_length: int = KV_LENGTH, block_size: int = BLOCK_SIZE) -> Tables:
    """Return both tables; `block_size` is the second one's, and NFE speed-ups that it can't give are left out."""
    at = {"kv_length": kv_length}
    nfes = [nfe for nfe in NFE_SPEEDUPS if nfe <= block_size]
    return Tables(
        {b: {k: slowdown(prediction, k, batch=b, **at) for k in BLOCK_SIZES} for b in BATCHES},
        {b: {n: block_speedup(prediction, n, block_size=block_size, batch=b, **at) for n in nfes} for b in BATCHES},
    )
