"""Define a request in the engine: its progress, and what it holds."""

from dataclasses import dataclass, field

from setblock.decoding.rows import Rows
from setblock.engine.pages import PagePool, page_key
from setblock.engine.request import Request


@dataclass(eq=False)
class Job:
    """Follow a request from when it is submitted until it is finished.

    Attributes:
        request: what is wanted.
        arrival: its place in the order in which requests came.
        rows: its own row while it waits; None while it is a row of the running batch.
        pages: the pages it holds, in the order of its positions.
        keys: of its first pages, those whose tokens are committed.
        prefilled: whether its prompt was fed to its end at least once.
        served: number of the pass that last fed it.
    """

    request: Request
    arrival: int
    rows: Rows | None
    pages: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    prefilled: bool = False
    served: int = -1

    def offer_committed(self, pool: PagePool, rows: Rows, row: int, committed: int) -> None:
        """Let others share the pages that are full of committed tokens."""
        size = pool.page_tokens
        while (len(self.keys) + 1) * size <= committed:
            start = len(self.keys) * size
            tokens = rows.state.tokens[row, start : start + size].tolist()
            self.keys.append(page_key(self.keys[-1] if self.keys else b"", tokens))
            pool.offer(self.pages[len(self.keys) - 1], self.keys[-1])

    def release(self, pool: PagePool) -> None:
        """Hold no pages any longer."""
        pool.release(self.pages)
        self.pages, self.keys = [], []
