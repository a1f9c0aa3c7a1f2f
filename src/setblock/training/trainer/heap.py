"""Keep memory that a training step frees on a CPU for the next step, and no more of it than a step needs.

glibc maps each allocation of 32 MiB and more anew and unmaps it when it is freed, so every page of every large temporary faults
again, step after step. The temporaries of an SBD step are twice those of a plain one: more of them are that large.

PyTorch's matrix products on a CPU (oneDNN) are prepared for each shape and kept, with their scratch memory, for the last 1,024
shapes. Rows of changing length make new shapes at each step. What is kept grows by megabytes a step, and lies between what is
freed, so that the heap has no room for a large temporary and grows, too.
"""

import ctypes
import os
import platform

# Of <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_MAX = -1, -4

_CACHES = ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY")  # oneDNN's, and PyTorch's over it
_SHAPES = "64"  # more than one step has: its layers have few

_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep the memory that it frees, for as long as it lives.

    It holds on to the most that it has needed: nobody else gets any of that before it ends. Call it before the first matrix
    product: then at most 64 prepared ones are kept, unless the environment says how many.

    Returns:
        Whether it does. False, and nothing else is changed, under another C library than glibc, or where the environment has
        settings for its allocator: those are the user's choice.
    """
    for name in _CACHES:
        os.environ.setdefault(name, _SHAPES)
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _VARIABLES):
        return False
    glibc = ctypes.CDLL(None)
    settings = {_M_MMAP_MAX: 0, _M_TRIM_THRESHOLD: -1}  # no allocation is a separate mapping, nothing is trimmed
    return all(glibc.mallopt(parameter, value) == 1 for parameter, value in settings.items())
