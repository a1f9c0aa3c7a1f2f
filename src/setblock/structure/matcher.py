"""Follow an answer through its grammar, and find what may come next.

Knows one compiled grammar and token ids. Knows nothing of models or rows. No text that it receives is checked: only tokens that
may come are given to it.
"""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from setblock.structure.compiled import grammars_of
from setblock.structure.kinds import Structure


class Matcher:
    """Walk through a grammar, back too."""

    def __init__(self, structure: Structure, tokenizer: PreTrainedTokenizerBase, *, ends: Sequence[int]) -> None:
        """Compile the form, unless that was done before. `ends` are the token ids that end an answer.

        Raises:
            SetBlockError: see `Grammars`.
        """
        grammars = grammars_of(tokenizer)
        self._matcher = grammars.matcher(structure)
        self._ends, self._own_ends = list(ends), grammars.end_ids
        self._beyond = 0  # tokens that were received from the one on that ended the answer

    def advance(self, token_ids: Sequence[int]) -> None:
        """Append these tokens to the text."""
        for token_id in token_ids:
            if self._beyond or token_id in self._ends:
                self._beyond += 1
            else:
                self._matcher.consume_token(token_id)

    def go_back(self, count: int) -> None:
        """Drop the last `count` tokens."""
        ended = min(count, self._beyond)
        self._beyond -= ended
        if count > ended:
            self._matcher.rollback(count - ended)

    def fill(self, allowed: Tensor) -> None:
        """Say what may come next: `allowed` [V] bool on the CPU is written to. An end is, where the text may end."""
        can_end = self._matcher.is_accepting()
        bits = np.frombuffer(self._matcher.compute_bitmask(), dtype=np.uint8)
        found = torch.from_numpy(np.unpackbits(bits, count=min(len(allowed), 8 * len(bits)), bitorder="little")).bool()
        allowed.fill_(False)
        allowed[: len(found)] = found
        allowed[self._own_ends] = False  # of a text that can't be finished, the engine allows these
        if can_end:
            allowed[self._ends] = True
