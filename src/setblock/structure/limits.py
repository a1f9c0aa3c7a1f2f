"""Limit the size of a form, which keeps the time of a grammar's compilation far below a second.

Knows texts. Knows nothing of what they mean.
"""

import re

from setblock.errors import ParameterError

MAX_BYTES = 128 * 1024
MAX_DEPTH = 64
MAX_VALUES = 1000
"""Of all of a schema's `enum`, together; and of all of its properties."""
MAX_CHOICES = 1000
MAX_TARGETS = 200
"""Places of a schema that are referred to."""
MAX_COUNT = 10_000
"""Of repetitions in a regular expression."""


def check_size(name: str, text: str) -> None:
    """Raise `ParameterError` if a text is too long."""
    size = len(text.encode(errors="surrogatepass"))
    if size > MAX_BYTES:
        raise ParameterError(f"{name} must be at most {MAX_BYTES} bytes, not {size}")


def check_counts(name: str, pattern: str) -> None:
    """Raise `ParameterError` if a regular expression repeats something too often."""
    for found in re.finditer(r"\{(\d+)(?:,(\d*))?\}", pattern):
        for count in filter(None, found.groups()):
            if len(count) > 9 or int(count) > MAX_COUNT:
                raise ParameterError(f"{name} must repeat at most {MAX_COUNT} times, not {found[0]}")
