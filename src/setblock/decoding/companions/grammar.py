"""Hold a row's answer to a form, by a grammar as a companion.

Knows rows' terms and a walk through a grammar. Knows nothing of how a grammar is written.
"""

from transformers import PreTrainedTokenizerBase

from setblock.decoding.companions.companion import Companion
from setblock.decoding.state.terms import RowTerms
from setblock.errors import SetBlockError
from setblock.structure.compiled import Matcher


class GrammarGuide(Matcher, Companion):
    """Restrict which tokens may come next in an answer of some form."""

    constrains = True


def guides_of(terms: RowTerms, tokenizer: PreTrainedTokenizerBase) -> list[Companion]:
    """Return what holds a row's answer to its form, if it has one. Raise `SetBlockError` if this model can't keep to it."""
    if terms.settings.structure is None:
        return []
    if not terms.ends:
        raise SetBlockError("structure needs a model with an end-of-text token: give stop_token_ids")
    return [GrammarGuide(terms.settings.structure, tokenizer, ends=terms.ends)]
