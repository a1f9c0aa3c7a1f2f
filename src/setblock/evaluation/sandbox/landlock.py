"""Restrict by Landlock which files this process may still read or write.

Knows the three system calls and their structures (see landlock(7)). Knows nothing of programs. Standard library only: it is
imported by the process that is to be confined.
"""

import ctypes
import os
import stat
import struct
from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446  # the same on every architecture
_QUERY_ABI = 1
_PATH_BENEATH = 1

_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_OF_ABI = {
    1: (1 << 13) - 1,
    2: (1 << 14) - 1,
    3: (1 << 15) - 1,
    5: (1 << 16) - 1,
}  # the access rights that each one knows
TRUNCATION_SINCE = 3  # the first ABI that asks who may truncate a file opened for reading


def landlock_abi() -> int:
    """Return the version that the kernel has.

    Raises:
        OSError: it has none, or it is turned off.
    """
    return _syscall(_CREATE_RULESET, None, 0, _QUERY_ABI)


def restrict_files(readable: Iterable[str], writable: Iterable[str], *, abi: int) -> None:
    """Allow reading only of what is `readable` or beneath it, and writing only of the files `writable`, from here on.

    Nothing can be made, removed or renamed. Paths that don't exist are left out. Can't be undone. Asks for no_new_privs.

    Args:
        abi: of `landlock_abi`, or an older one.

    Raises:
        OSError: the kernel refuses.
    """
    handled = max(rights for since, rights in _OF_ABI.items() if since <= abi)
    attributes = ctypes.create_string_buffer(struct.pack("=Q", handled), 8)
    ruleset = _syscall(_CREATE_RULESET, attributes, 8, 0)
    try:
        for path in readable:
            _allow(ruleset, path, _READ_FILE | _READ_DIR)
        for path in writable:
            _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | (1 << 14)) & handled)
        _syscall(_RESTRICT_SELF, ruleset, 0, 0)
    finally:
        os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            rights &= ~_READ_DIR
        rule = ctypes.create_string_buffer(struct.pack("=Qi", rights, descriptor), 12)
        _syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0)
    finally:
        os.close(descriptor)


def _syscall(number: int, *arguments: object) -> int:
    libc = ctypes.CDLL(None, use_errno=True)
    result = int(libc.syscall(ctypes.c_long(number), *arguments))
    if result < 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error))
    return result
