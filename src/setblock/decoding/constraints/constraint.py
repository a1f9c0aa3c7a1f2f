"""The interface of constraints, each of which follows one row's tokens and may restrict the next ones.

The text of an answer is a constraint; a grammar is another.
"""

from collections.abc import Sequence

from torch import Tensor


class TokenConstraint:
    """An observer of one row's tokens, which may restrict the next ones. A subclass overrides the methods that it needs.

    After each pass it receives what has changed: text without a gap, drafts included, by `retract` and `reveal`; then
    final text by `read`.

    Attributes:
        is_lazy: whether it may receive updates late, when the row's outputs are read, rather than in each pass.
        constrains: whether it restricts the next token. If so, each pass also tries it on tokens that may not be kept, by
            `reveal`, and takes them back, by `retract`.
        stop_length: the length of the answer, in tokens, once the constraint wants it to end; until then None.
    """

    is_lazy: bool = False
    constrains: bool = False
    stop_length: int | None = None

    def reveal(self, token_ids: Sequence[int]) -> None:
        """Append these tokens to the answer. In method `exact` they may be a draft, which may be wrong."""

    def retract(self, count: int) -> None:
        """Drop the last `count` tokens of the answer: a draft was corrected or shortened, or they were tentative."""

    def read(self, token_ids: Sequence[int], *, final: bool = False) -> None:
        """Receive the next final tokens of the answer, without an end-of-text. `final`: no more will come."""

    def fill(self, allowed: Tensor) -> None:
        """Set `allowed` [V] bool, on the CPU, to False for tokens that may not follow those received so far. Tokens
        that end the answer are allowed where it may end. Never called for a position after a gap, which stays masked.
        """
