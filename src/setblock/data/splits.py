"""Splits: which part of generated or installed data something belongs to, told by a hash of what makes it itself.

Knows text. Knows nothing of tasks, files or models.
"""

import hashlib
from typing import Literal

Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")


def split_of(identity: str, *, held_out_percent: int = 5) -> Split:
    """The split of whatever has this identity: a function of the text alone, so that no two splits can share one.

    Args:
        held_out_percent: of all identities, for each of validation and test.
    """
    bucket = int.from_bytes(hashlib.sha256(identity.encode()).digest()[:4]) % 100
    if bucket < held_out_percent:
        return "test"
    return "validation" if bucket < 2 * held_out_percent else "train"
