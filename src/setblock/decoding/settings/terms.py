"""Define what is fixed of a row from its beginning, where the host can read it without waiting for the device.

Knows numbers. Knows nothing of what has become of the row.
"""

from dataclasses import dataclass

from setblock.decoding.settings.table import Method
from setblock.model.protocol.feed import PROMPT_PART


@dataclass(frozen=True)
class RowTerms:
    """Hold the terms of one row, with all open settings decided.

    Attributes:
        method: `sbd`, `exact` or `ntp`.
        prompt_length: tokens of the prompt.
        limit: the position past the last one that may be generated.
        ends: token ids that end the answer.
        block_size: k; 1 in method `ntp`.
        adapts_drafts: whether each pass decides anew how much is drafted: in method `exact`, unless drafts are fixed.
        draft_lookup, prefill_chunk: as in `DecodingSettings`.
    """

    method: Method
    prompt_length: int
    limit: int
    ends: tuple[int, ...]
    block_size: int
    adapts_drafts: bool = False
    draft_lookup: int = 0
    prefill_chunk: int = PROMPT_PART

    @property
    def most_passes(self) -> int:
        """Return a bound on its passes after the prefill: each token takes at most one that drafts, and one that
        commits."""
        return 1 + 2 * (self.limit - self.prompt_length)
