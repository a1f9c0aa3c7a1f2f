"""The constraint that keeps an answer to a form, such as a JSON schema."""

from setblock.decoding.constraints.constraint import TokenConstraint
from setblock.structure.compiled import Matcher


class GrammarGuide(Matcher, TokenConstraint):
    """The constraint that keeps an answer to the form of its `structure`."""

    constrains = True
