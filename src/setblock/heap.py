"""Allocator settings with which memory that a pass or a training step frees on a CPU is reused by the next one.

glibc returns large freed allocations to the system, so that every page of every large temporary faults again in each pass: with
32 rows in half precision that took a third of a pass. The temporaries of an SBD training step are twice those of a plain one,
so that more of them are that large.

PyTorch's matrix products on a CPU (oneDNN) are prepared for each shape and kept, with their scratch memory, for the last 1,024
shapes. In training, rows of changing length make new shapes at each step. The kept memory grows by megabytes a step and
fragments the heap, which then grows, too, as it has no room for a large temporary.
"""

import ctypes
import os
import platform

# From <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8

_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # oneDNN's cache, and PyTorch's cache above it
_SHAPES = "64"  # more than one step has: its layers have few

_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


_trains = False  # whether this process trains; never reset


def keep_freed_memory(*, for_training: bool = False) -> bool:
    """Let this process keep the memory that it frees, until it ends. `setblock.load` calls this for a model on a CPU.

    The process then keeps its peak memory: other processes get none of it before it ends.

    Args:
        for_training: also keep at most 64 prepared matrix products, unless the environment sets the number, and leave each
            thread its own heap, in later calls, too. Call it before the first pass.

    Returns:
        Whether the memory is kept. False, with nothing changed, if the C library is not glibc, or if the environment has
        settings for its allocator: those are the user's choice.
    """
    global _trains
    if for_training:
        _trains = True
        for name in _CACHES:
            os.environ.setdefault(name, _SHAPES)
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _VARIABLES):
        return False
    # No allocation is a separate mapping, and nothing is trimmed. Threads share one heap, since a thread's own heap has no room
    # for large tensors, which the engine's thread needs. But in attention's backward pass all threads allocate at once, and on
    # one heap they wait for each other: a step on two threads took 1.4 times as long. There 0 leaves glibc its default.
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1, _M_ARENA_MAX: 0 if _trains else 1}
    glibc = ctypes.CDLL(None)
    return all(glibc.mallopt(parameter, value) == 1 for parameter, value in settings.items())
