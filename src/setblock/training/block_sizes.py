"""Choose the block size k of an optimiser step (Algorithm 1), and make sizes grow where they do.

Knows a seed, a step and how much of the training is done. Knows nothing of blocks.
"""

from collections.abc import Sequence

import numpy as np


def drawn_block_size(block_sizes: Sequence[int], *, seed: int, step: int, progress: float, curriculum: float) -> int:
    """Return the block size of a step, which depends on these arguments only.

    With a curriculum, only the smaller ones are drawn from at first: the share `progress / curriculum` of `block_sizes` in
    order of size, rounded up, and at least one. Small blocks are close to what a next-token model does already; LLaDA 2.0
    (arXiv 2512.15745) and T* (arXiv 2601.11214) go from small to large, too.

    Args:
        block_sizes: what is drawn from, evenly; one that is there twice is drawn twice as often.
        seed: of the whole training.
        step: optimiser steps done.
        progress: share of the training that is done, in 0..1.
        curriculum: share of the training after which all sizes are drawn from; 0: from its beginning.
    """
    sizes = list(block_sizes)
    if progress < curriculum:
        sizes = sorted(sizes)[: max(1, int(np.ceil(len(sizes) * progress / curriculum)))]
    return int(np.random.default_rng((seed, step)).choice(sizes))
