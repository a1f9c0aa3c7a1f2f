"""The form of an answer, in the process that holds the model: a constraint of the request's row, as everywhere.

The form was tried in the server's process, within the sandbox's bounds (`setblock_vllm.fields`).
"""

from dataclasses import dataclass
from typing import Any

from setblock.decoding.constraints.grammar import GrammarGuide
from setblock.decoding.settings.table import RequestParams
from setblock.structure.compiled import grammars_of
from setblock.structure.kinds import Structure


@dataclass(frozen=True, eq=False)
class Form:
    """A form that an answer is held to: a `ConstraintFactory`."""

    structure: Structure
    tokenizer: Any

    def constraint(self, params: RequestParams, *, vocab_size: int) -> GrammarGuide:
        """Return the constraint of an answer."""
        compiled = grammars_of(self.tokenizer).tried(self.structure)  # held until it is found
        guide = GrammarGuide(self.structure, self.tokenizer, ends=params.ends)
        del compiled
        return guide
