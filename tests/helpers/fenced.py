"""Fenced blocks of Markdown pages, and what runs in place of a server that they start."""

import re
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Block:
    """A fenced block of a page; `not_run` is the reason that a comment before it gives for not running it, or None."""

    line: int
    language: str
    content: str
    not_run: str | None

    @property
    def runs_here(self) -> bool:
        return self.language in ("bash", "python") and self.not_run is None

    @property
    def commands(self) -> list[str]:
        """The commands of a block of bash; one with a here-document is one command."""
        if "<<" in self.content:
            return [self.content]
        lines = (line.partition("  #")[0].strip() for line in self.content.replace("\\\n", " ").splitlines())
        return [line for line in lines if line and not line.startswith("#")]


def blocks(path: Path) -> list[Block]:
    found = []
    text = path.read_text()
    pattern = re.compile(
        r"(?:<!-- not run: (?P<reason>[^>]+) -->\n+)?^```(?P<language>\w*)\n(?P<content>.*?)^```$", re.M | re.S
    )
    for match in pattern.finditer(text):
        line = text.count("\n", 0, match.start("language")) + 1
        found.append(Block(line, match["language"], match["content"], match["reason"]))
    return found


def start_and_stop(
    _model: object, _config: object, bound: socket.socket, *, on_start: Callable[[], None], **_: object
) -> int:
    """What `setblock serve` does, if it is stopped at once."""
    with bound:
        on_start()
    return 0
