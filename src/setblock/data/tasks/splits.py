"""Decide which split generated data belongs to, by a hash of what makes it itself.

Knows text. Knows nothing of tasks, files or models.
"""

import hashlib
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


_HELD_OUT_PERCENT = 5  # of all identities, for each of validation and test


def split_of(identity: str) -> Split:
    """Return the split of whatever has this identity: a function of the text only, so that no two splits can share one."""
    bucket = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4]) % 100
    if bucket < _HELD_OUT_PERCENT:
        return "test"
    return "validation" if bucket < 2 * _HELD_OUT_PERCENT else "train"
