"""Define what is fixed of rows from their beginning: of one, where the host can read it without waiting for the device, and of
a batch, as tensors.

Knows numbers. Knows nothing of what has become of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from setblock.decoding.drafts.chances import CONFIDENCES
from setblock.decoding.settings.table import Method
from setblock.model.protocol.facts import SBDFacts
from setblock.model.protocol.feed import PROMPT_PART, fixed_capacity

NO_TOKEN = -1


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


class Terms:
    """Hold the terms of the rows of a batch. Tensors are int64 unless stated; k is the largest block size.

    Attributes:
        rows: of each, for the host.
        facts: how the model's logits are read; None where it was never trained for blocks.
        prompt_length, limit, block_size: [B] as in `RowTerms`.
        ends: [B, E] token ids that end an answer, filled up with `NO_TOKEN`.
        is_ntp: [B] bool, rows that decode one token a pass.
        is_exact: [B] bool, rows whose blocks are drafts: what is committed is checked.
        draft_lookup: [B] of exact rows, how many tokens must match for a draft to be copied from the text; 0 for never.
        is_first: [k] bool, the first place of a block.
        takes_next: [B, k] bool, the first places of exact rows' blocks: what the causal logit says is taken as soon as it is
            known. None where no row is exact.
        first_is_causal: [B] bool, rows whose block's first token is predicted by the last token before the block; None where no
            row's is.
        shifts: [B, k] how far before a position of the block stands the output that predicts it.
        confidences: the bounds between the kinds of what the model drafts, float32.
        is_all_exact, is_all_causal, feeds_whole: whether all rows are exact, or never fed a block, or always a whole one.
        copies_drafts, adapts_drafts: whether the drafts of any row may be copied from the text, or vary in length.
    """

    def __init__(self, rows: Sequence[RowTerms], facts: SBDFacts | None, *, device: torch.device) -> None:
        self.rows, self.facts = tuple(rows), facts
        self._methods = {each.method for each in rows}
        most_ends = max(1, *(len(each.ends) for each in rows))

        def column(values: Sequence[object]) -> torch.Tensor:
            return torch.tensor(values, device=device)

        self.prompt_length = column([each.prompt_length for each in rows])
        self.limit = column([each.limit for each in rows])
        self.ends = column([[*each.ends, *[NO_TOKEN] * (most_ends - len(each.ends))] for each in rows])
        self.block_size = column([each.block_size for each in rows])
        self.is_ntp = column([each.method == "ntp" for each in rows])
        self.is_exact = column([each.method == "exact" for each in rows])
        self.draft_lookup = column([each.draft_lookup if each.method == "exact" else 0 for each in rows])
        self.confidences = column(CONFIDENCES)
        self.is_all_exact = self._methods == {"exact"}
        self.is_all_causal = facts is None or self._methods == {"ntp"}
        self.copies_drafts = any(each.method == "exact" and each.draft_lookup for each in rows)
        self.adapts_drafts = any(each.adapts_drafts for each in rows)
        self.feeds_whole = facts is not None and not self.has("ntp") and not self.adapts_drafts

        self.is_first = torch.arange(self.block_width, device=device) == 0
        self.takes_next = self.is_exact[:, None] & self.is_first if self.has("exact") else None
        self.first_is_causal = self.is_ntp | self.is_exact if self.has("ntp") or self.has("exact") else None
        if facts is None or facts.first_token_from_causal:
            self.first_is_causal = torch.ones_like(self.is_ntp)
        self.shifts = torch.ones((len(rows), self.block_width), dtype=torch.long, device=device)
        if facts is not None and not facts.logit_shift:
            from_before = torch.zeros_like(self.is_ntp) if self.first_is_causal is None else self.first_is_causal
            self.shifts[:] = from_before[:, None] & self.is_first

    @property
    def block_width(self) -> int:
        """Return k."""
        return max(each.block_size for each in self.rows)

    @property
    def capacity(self) -> int:
        """Return C, past every row's block, rounded up."""
        return fixed_capacity(max(each.limit for each in self.rows) + self.block_width)

    @property
    def takes_first_at_once(self) -> bool:
        """Return whether every row takes a block's first token from the first causal logit that predicts it."""
        return self.facts is None or not self.has("sbd")

    def has(self, method: Method) -> bool:
        """Return whether any row is decoded by a method."""
        return method in self._methods


def mask_of(facts: SBDFacts | None) -> int:
    """Return the token that is written where nothing is revealed."""
    return NO_TOKEN if facts is None else facts.mask_token_id
