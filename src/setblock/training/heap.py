"""Memory that a training step frees on a CPU, kept for the next step.

glibc maps each allocation of 32 MiB and more anew and unmaps it when it is freed, so every page of every large temporary faults
again, step after step. The temporaries of an SBD step are twice those of a plain one: more of them are that large.
"""

import ctypes
import os
import platform

# Of <malloc.h>
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGEST = 2**31 - 1  # an int

_VARIABLES = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_MMAP_MAX_", "GLIBC_TUNABLES")


def keep_freed_memory() -> bool:
    """Let this process keep what it frees of allocations up to 2 GiB, for as long as it lives.

    It holds on to the most that it has needed, and up to its end nobody else gets any of it back.

    Returns:
        Whether it does. False, and nothing is changed, under another C library than glibc, or where the environment has
        settings for its allocator: those are the user's choice.
    """
    if platform.libc_ver()[0] != "glibc" or any(name in os.environ for name in _VARIABLES):
        return False
    glibc = ctypes.CDLL(None)
    return all(glibc.mallopt(parameter, _LARGEST) == 1 for parameter in (_M_MMAP_THRESHOLD, _M_TRIM_THRESHOLD))
