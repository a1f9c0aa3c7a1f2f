"""Read the PROMPT argument: a text, or `-` for stdin."""

import sys

from setblock.errors import SetBlockError


def read_prompt(argument: str) -> str:
    """Return the prompt's text.

    Raises:
        SetBlockError: it is not valid UTF-8.
    """
    try:
        # Bytes, since how stdin is decoded depends on the locale.
        text = sys.stdin.buffer.read().decode() if argument == "-" else argument
        text.encode()  # bytes of an argument that are not UTF-8 come as lone surrogates
    except UnicodeError as error:
        raise SetBlockError("prompt must be valid UTF-8") from error
    return text
