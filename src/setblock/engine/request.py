"""A request to the engine, its progress in a pass, and its state until it is finished."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from setblock.decoding.answer.generation import Generation
from setblock.decoding.answer.row_output import RowOutput
from setblock.decoding.batch import Batch
from setblock.decoding.settings.resolve import CheckedRows
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.pages import PagePool
from setblock.errors import SetBlockError


class QueueFull(SetBlockError):  # noqa: N818  # a state of the engine, and nothing wrong with the request
    """The queue is full. The same request can be submitted again later."""


@dataclass(frozen=True)
class Request:
    """A request for one answer. Several samples of a prompt are several requests.

    Attributes:
        id: the name of the request, unique among unfinished requests.
        prompt: token ids.
        settings: how to decode, with n = 1.
        streams: whether each pass gives the text that it made final. Otherwise all of it comes with the answer, which costs the
            host less.
    """

    id: str
    prompt: Sequence[int]
    settings: DecodingSettings
    streams: bool = True


class Progress(NamedTuple):
    """The result of one pass for one request.

    Attributes:
        id: the id of the request.
        text: the text that the pass made final; may be empty. It always is if the request does not stream.
        token_ids: the tokens of the answer that the pass made final, without an end of text.
        event: the pass's output for this request. None if it fed only a part of the prompt, or the request was cancelled.
        generation: the finished answer, in a request's last progress only.
    """

    id: str
    text: str
    token_ids: Sequence[int]
    event: RowOutput | None
    generation: Generation | None


@dataclass(eq=False)
class EngineSequence:
    """The state of a request from when it is submitted until it is finished."""

    request: Request
    arrival: int  # its number in the order in which requests came
    checked: CheckedRows | None  # its checked prompt and settings until its row is opened; then None
    token_ids: list[int]  # of the prompt, and the final tokens of the answer
    prompt_end: int  # the end of its prompt, or of what was cached when it was preempted: fed without a block
    block_end: int  # the end of its next block, at most: a sequence starts when there is cache up to here
    # Its own row while it waits; None while it is a row of the running batch, and before it is opened
    rows: Batch | None = None
    pages: list[int] = field(default_factory=list)  # the pages it holds, in the order of its positions
    keys: list[bytes] = field(default_factory=list)  # of its first pages, those whose tokens are committed
    prefilled: bool = False  # whether its prompt was fed to its end at least once
    served: int = -1  # number of the pass that last fed it
    row: int = -1  # its row of the table while it runs

    def opened(self) -> Batch:
        """Return its own row while it is in no batch. The first call opens the row: before, it needs no memory of the
        device."""
        if self.checked is not None:
            self.rows, self.checked = Batch.opened(self.checked), None
        assert self.rows is not None
        return self.rows

    def read(self, outputs: RowOutput) -> list[int]:
        """Append the tokens that a pass made final, and return them."""
        made = outputs.tokens_between(len(self.token_ids), outputs.answer_end)
        assert made is not None  # every pass is read, so its output has all tokens since the last one
        self.token_ids += made
        return made

    def cache_full_pages(self, pool: PagePool, committed: int) -> None:
        """Cache the pages that are full of committed tokens. `committed` is where these end."""
        for key in pool.keys_of(self.token_ids, committed, known=self.keys):
            pool.cache_page(self.pages[len(self.keys)], key)
            self.keys.append(key)

    def release(self, pool: PagePool) -> None:
        """Release its pages."""
        pool.release(self.pages)
        self.pages, self.keys = [], []
