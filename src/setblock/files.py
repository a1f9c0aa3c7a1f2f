"""Read and write text files: refused in one line, written whole or not at all, and without lines that were cut short.

Knows files, and how two records in them differ. Knows nothing of what they mean.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from setblock.errors import SetBlockError


def read_text(path: Path, *, what: str = "") -> str:
    """Return the text of a file.

    Args:
        what: what is in it, for the message.

    Raises:
        SetBlockError: it can't be read, or is not valid UTF-8.
    """
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise SetBlockError(f"can't read {what}{' ' if what else ''}{path}: {error.strerror}") from error
    except UnicodeError as error:
        raise SetBlockError(f"{what}{' ' if what else ''}{path} must be valid UTF-8") from error


def write_whole(path: Path, text: str) -> None:
    """Write a file, which appears or changes once it is whole."""
    temporary = path.with_name(f".{path.name}.writing")
    temporary.write_text(text, encoding="utf-8")
    os.replace(temporary, path)


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, none if there is no file. A last line that was cut short is taken out of the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        os.truncate(path, len(whole))
    return whole.splitlines()


def differences(recorded: Any, wanted: Any, key: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted keys at which two records differ, with both values."""
    if isinstance(recorded, dict) and isinstance(wanted, dict):
        for name in sorted(recorded.keys() | wanted.keys()):
            yield from differences(recorded.get(name), wanted.get(name), f"{key}.{name}".lstrip("."))
    elif recorded != wanted:
        yield key, recorded, wanted
