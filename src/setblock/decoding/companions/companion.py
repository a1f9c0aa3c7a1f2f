"""Define what accompanies a row: it follows the row's tokens, and may restrict the next ones.

Knows token ids. Knows nothing of models, states or batches. The text of an answer is a companion; a grammar is another.
"""

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from setblock.decoding.state.terms import RowTerms


class Companion:
    """Follow one row, and perhaps restrict its tokens. A subclass overrides the methods that it needs.

    After each pass it receives what has changed: by `retract` and `reveal`, text without a gap, drafts too; then by `read`,
    final text.

    Attributes:
        is_lazy: whether it need not hear of each pass at once, but may hear of it when somebody asks for its row.
        constrains: whether it says what may come next. Then, in each pass, it receives tokens tentatively too (by `reveal`, and
            soon after by `retract`).
        stop_length: of the answer, in tokens, once the companion wants it to end there; else None.
    """

    is_lazy: bool = False
    constrains: bool = False
    stop_length: int | None = None

    def reveal(self, token_ids: Sequence[int]) -> None:
        """Append these tokens to the answer. In method `exact` they may be a draft, and wrong."""

    def retract(self, count: int) -> None:
        """Drop the last `count` tokens of the answer: a draft was corrected or given up."""

    def read(self, token_ids: Sequence[int], *, final: bool = False) -> None:
        """Take the next tokens of the answer that are certain, without an end-of-text. `final`: no more will come."""

    def fill(self, allowed: Tensor) -> None:
        """Set `allowed` [V] bool, on the CPU, to False where a token may not come right after all tokens that it has received.
        Tokens that end the answer are allowed where it may end. It is never asked behind a gap: such positions stay masked.
        """


class CompanionMaker(Protocol):
    """Make a companion for each answer of a request, which carries it in `DecodingSettings.companions`."""

    def companion(self, terms: RowTerms, *, vocab_size: int) -> Companion:
        """Return a companion for a row that is about to begin, or raise `SetBlockError` if the model does not allow it."""
