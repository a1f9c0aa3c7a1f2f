"""Compute the wall-clock speed-up from the times of passes (paper, eq. 16).

Knows times. Knows nothing of where they come from: a stopwatch and a hardware model serve alike.
"""


def predicted_speedup(
    passes_per_block: float, *, block_size: int, one_token: float, block: float, fused: float
) -> float:
    """Return how many times faster than one token a pass a block is decoded (eq. 16).

        speedup(l, k) = k * time(1) / (time(2k) + (l - 1) * time(k))

    A block of k tokens costs one fused pass, which commits the block before it, and l - 1 passes over the block alone.

    Args:
        passes_per_block: l, the mean number of passes that a block takes, in 1..k; k / l is the NFE speed-up.
        block_size: k.
        one_token: time(1), of a pass over one token. The three times are in any one unit.
        block: time(k), of a pass over a block.
        fused: time(2k), of the fused commit and first pass.

    Raises:
        ValueError: `passes_per_block` is not in 1..k, or a time is not positive.
    """
    if not 1 <= passes_per_block <= block_size:
        raise ValueError(f"passes_per_block must be in 1..{block_size} (the block size), not {passes_per_block}")
    if not min(one_token, block, fused) > 0:
        raise ValueError(f"times must be positive, not {one_token}, {block}, {fused}")
    return block_size * one_token / (fused + (passes_per_block - 1) * block)
