"""Define what decoding needs of a model, and of the runner of its passes. A runtime is a class that has this;
`SBDModel` is one.

Knows nothing of PyTorch modules, of Transformers' models, nor of how a cache is laid out.
"""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.facts import SBDFacts
from setblock.model.protocol.feed import Feed

Function = Callable[..., Any]


class Compile(Protocol):
    """Give a function that does the same with tensors of few, fixed shapes, and faster."""

    def __call__(self, function: Function, /) -> Function:
        """Return the fast one."""
        ...


def as_it_is(function: Function, /) -> Function:
    """Return the function itself, which is no faster."""
    return function


class Runner(Protocol):
    """Run the passes of a batch of rows, and keep what the model remembers of them (its keys and values).

    A pass writes what it is fed to its positions of the cache, future blocks included. Every later pass of a row begins at or
    before the end of what was committed, so it writes over what a block has left there.
    """

    @property
    def fuses_commit(self) -> bool:
        """Return whether a row may be fed tokens causally and a future block behind them in one pass. Where not, each
        commit is a separate pass."""
        ...

    @property
    def pads(self) -> bool:
        """Return whether a pass computes as many tokens for each row, padding included."""
        ...

    @property
    def fixed_keys(self) -> int | None:
        """Return the positions of a row's cache, which every pass reads in full where passes should be of few sizes;
        else None."""
        ...

    @property
    def compiled(self) -> Compile:
        """Return what makes the functions between passes of few sizes fast; `as_it_is` where nothing does."""
        ...

    def logits(self, feed: Feed) -> Tensor:
        """Return float32 logits, which may be written to: [M, V] of the M outputs that are wanted, row by row; or [A, m, V]
        of all outputs, with anything where none is wanted."""
        ...


class PagedRunner(Runner, Protocol):
    """Run the passes of rows that come and go. Its cache is pages of positions, which rows may share where they begin
    alike."""

    @property
    def shares_pages(self) -> bool:
        """Return whether a row may be given pages that another row has filled, instead of being fed what they hold."""
        ...

    def place(self, pages: Sequence[Sequence[int]], ids: Sequence[int]) -> None:
        """Say which rows the next pass's batch has; none, where there is none.

        Args:
            pages: of each row, the pages that hold its positions, from the first on.
            ids: of each row, a unique number, as long as it is in the batch. A row that comes again is fed anew.
        """
        ...


class LanguageModel(Protocol):
    """Define a model that decoding can drive.

    Attributes:
        draft_text: texts that method `exact` copies drafts from, besides each request's own; None where there are none.
    """

    draft_text: DraftText | None

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the model's tokenizer."""
        ...

    @property
    def facts(self) -> SBDFacts | None:
        """Return what the model's training fixed; None where it was never trained for blocks. It then decodes by `ntp`, and
        by `exact` with copied drafts."""
        ...

    @property
    def end_of_text_ids(self) -> Sequence[int]:
        """Return the ids that end an answer."""
        ...

    @property
    def vocab_size(self) -> int:
        """Return V, the number of logits of a position."""
        ...

    @property
    def context_length(self) -> int | None:
        """Return the most positions that the model can hold, or None where there is no limit."""
        ...

    @property
    def device(self) -> torch.device:
        """Return the device where feeds are made, and logits are read."""
        ...

    def runner(self, *, rows: int, capacity: int) -> Runner:
        """Return a runner, with an empty cache, of `rows` rows of at most `capacity` positions, which stay together to
        the end."""
        ...

    def paged_runner(self, *, pages: int, page_tokens: int, rows: int) -> PagedRunner:
        """Return a runner of rows that come and go, at most `rows` at once.

        Its cache is empty, and has `pages` pages of `page_tokens` positions.

        Raises:
            SetBlockError: the model can't be run so; the message says why.
        """
        ...
