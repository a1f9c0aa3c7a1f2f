"""Define what decoding needs of a model. A runtime is a class that has this, and a runner of its passes; `SBDModel` is one.

Knows nothing of PyTorch modules, nor of Transformers' models.
"""

from collections.abc import Sequence
from typing import Protocol

import torch
from transformers import PreTrainedTokenizerBase

from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.facts import SBDFacts
from setblock.model.protocol.runner import PagedRunner, Runner


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
