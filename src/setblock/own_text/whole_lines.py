"""Read the whole lines of a file that an interrupted run may have cut short."""

from pathlib import Path


def whole_lines(path: Path) -> list[bytes]:
    """Return the lines of a file, none where there is no file. A last line that was cut short is taken out of the file."""
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    if len(whole) < len(content):
        with path.open("r+b") as file:
            file.truncate(len(whole))
    return whole.splitlines()
