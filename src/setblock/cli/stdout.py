"""Write results to stdout; a command whose stdout takes nothing says so, instead of losing its answer."""

import errno
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from setblock.errors import SetBlockError

_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def writable_stdout() -> Iterator[None]:
    """Make sure that all that is written to stdout while active has left the process afterwards.

    Raises:
        SetBlockError: stdout is closed, or its disk is full.
    """
    if sys.stdout is None:
        raise SetBlockError("stdout is closed, so that nothing could be written to it")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        # What is left in Python's buffer would fail again as the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SetBlockError(f"can't write to stdout: {error.strerror}") from error
