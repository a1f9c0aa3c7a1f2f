"""Hold a row's answer to a form, by a grammar as a companion.

Knows rows' terms and a walk through a grammar. Knows nothing of how a grammar is written.
"""

from collections.abc import Sequence

from torch import Tensor
from transformers import PreTrainedTokenizerBase

from setblock.decoding.companions.companion import Companion
from setblock.errors import SetBlockError
from setblock.structure.compiled import Matcher
from setblock.structure.kinds import Structure


class GrammarGuide(Companion):
    """Restrict which tokens may come next in an answer of some form."""

    constrains = True

    def __init__(self, matcher: Matcher) -> None:
        self._matcher = matcher

    def reveal(self, token_ids: Sequence[int]) -> None:
        """See `Companion`."""
        self._matcher.advance(token_ids)

    def retract(self, count: int) -> None:
        """See `Companion`."""
        self._matcher.go_back(count)

    def fill(self, allowed: Tensor) -> None:
        """See `Companion`."""
        self._matcher.fill(allowed)


def grammar_guide(structure: Structure, tokenizer: PreTrainedTokenizerBase, *, ends: Sequence[int]) -> GrammarGuide:
    """Return a guide at the beginning of an answer, which `ends` end.

    Raises:
        SetBlockError: the form is not possible with this model.
    """
    if not ends:
        raise SetBlockError("structure needs a model with an end-of-text token: give stop_token_ids")
    return GrammarGuide(Matcher(structure, tokenizer, ends=ends))
