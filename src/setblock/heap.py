"""Keep memory that a pass or a training step frees on a CPU for the next one, and no more of it than one needs.

glibc gives large allocations that are freed back to the system, so every page of every large temporary faults again, pass after
pass: with 32 rows in half precision that took a third of a pass. The temporaries of an SBD training step are twice those of a
plain one: more of them are that large.

PyTorch's matrix products on a CPU (oneDNN) are prepared for each shape and kept, with their scratch memory, for the last 1,024
shapes. In training, rows of changing length make new shapes at each step. What is kept grows by megabytes a step, and lies
between what is freed, so that the heap has no room for a large temporary and grows, too.
"""

import ctypes
import os
import platform

# Of <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8

_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # oneDNN's, and PyTorch's over it
_SHAPES = "64"  # more than one step has: its layers have few

_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


_trains = False  # whether this process does: to its end


def keep_freed_memory(*, for_training: bool = False) -> bool:
    """Let this process keep the memory that it frees, for as long as it lives. `setblock.load` calls it for a model on a CPU.

    It holds on to the most that it has needed: nobody else gets any of that before it ends.

    Args:
        for_training: also keep at most 64 prepared matrix products, unless the environment says how many, and leave each
            thread its own heap, in later calls, too. To be called before the first pass.

    Returns:
        Whether it does. False, and nothing is changed, under another C library than glibc, or where the environment has
        settings for its allocator: those are the user's choice.
    """
    global _trains
    if for_training:
        _trains = True
        for name in _CACHES:
            os.environ.setdefault(name, _SHAPES)
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _VARIABLES):
        return False
    # No allocation is a separate mapping, and nothing is trimmed. Threads share one heap, since their own hold no large
    # tensors: the engine's thread needs them. But in attention's backward pass all threads allocate at once, and on one heap
    # they wait for each other: a step on two threads took 1.4 times as long. There 0 leaves glibc its default.
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 0 if _trains else 1}
    glibc = ctypes.CDLL(None)
    return all(glibc.mallopt(parameter, value) == 1 for parameter, value in settings.items())
