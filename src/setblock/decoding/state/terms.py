"""Define the terms of rows, which never change: of one row as numbers for the host, of a batch as tensors.

Knows numbers. Knows nothing of what has become of a row.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from setblock import devices
from setblock.decoding.drafts.gains import CONFIDENCES
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.protocol.facts import SBDFacts
from setblock.model.protocol.runtime import fixed_capacity

NO_TOKEN = -1


@dataclass(frozen=True)
class RowTerms:
    """Hold the terms of one row."""

    settings: DecodingSettings  # of the request, with the operating point decided
    # K; 1 in method `ntp`. Where the answer is short, blocks are smaller than those that were asked for
    block_size: int
    prompt_length: int  # tokens of the prompt
    limit: int  # the position past the last one that may be generated
    ends: tuple[int, ...]  # token ids that end the answer
    branches: int = 0  # the most that a pass is fed

    @property
    def adapts_drafts(self) -> bool:
        """Return whether each pass decides anew how much is drafted."""
        return self.settings.method == "exact" and self.settings.drafts == "adaptive"

    @property
    def most_passes(self) -> int:
        """Return a bound on its passes after the prefill: for each token at most one that drafts and one that commits."""
        return 1 + 2 * (self.limit - self.prompt_length)


class Terms:
    """Hold the terms of a batch's rows, int64 unless stated; k is the largest block size. Fields of `RowTerms` are [B]."""

    def __init__(self, rows: Sequence[RowTerms], facts: SBDFacts | None, *, device: torch.device) -> None:
        """Take `rows`, which stay for the host, and how the model's logits are read; None where it never learned blocks."""
        self.rows, self.facts = tuple(rows), facts
        self.waits = devices.waits(device)  # whether a host that reads a value has to wait for the device
        self.block_width = max(each.block_size for each in rows)  # k
        self.most_passes = max(each.most_passes for each in rows)
        self.capacity = fixed_capacity(max(each.limit for each in rows) + self.block_width)  # C, past every row's block
        methods = {each.settings.method for each in rows}
        self.has_sbd, self.has_exact, self.has_ntp = ("sbd" in methods, "exact" in methods, "ntp" in methods)
        # What is written where nothing is revealed
        self.mask_token = NO_TOKEN if facts is None or facts.mask_token_id is None else facts.mask_token_id
        most_ends = max(1, *(len(each.ends) for each in rows))

        def column(values: Sequence[object]) -> torch.Tensor:
            return torch.tensor(values, device=device)

        self.prompt_length = column([each.prompt_length for each in rows])
        self.limit = column([each.limit for each in rows])
        self.ends = column([[*each.ends, *[NO_TOKEN] * (most_ends - len(each.ends))] for each in rows])  # [B, E]
        self.block_size = column([each.block_size for each in rows])
        self.branches = column([each.branches for each in rows])
        self.is_ntp = column([each.settings.method == "ntp" for each in rows])  # [B] bool, one token a pass
        self.is_exact = column([each.settings.method == "exact" for each in rows])  # [B] bool, blocks are drafts
        self.draft_lookup = column([each.settings.draft_lookup or 0 for each in rows])  # [B] as in the settings
        self.seeds = column([each.settings.seed for each in rows])  # [B] of each row's draws
        self.confidences = column(CONFIDENCES)  # float32, the bounds between the kinds of what the model drafts
        # Whether the drafts of any row may be copied from the text, or vary in length
        self.copies_drafts = any(each.settings.draft_lookup for each in rows)
        self.adapts_drafts = any(each.adapts_drafts for each in rows)
        # Whether all rows are exact, or never fed a block, or always a whole one
        self.is_all_exact = methods == {"exact"}
        self.is_all_causal = facts is None or methods == {"ntp"}
        self.feeds_whole = facts is not None and not self.has_ntp and not self.adapts_drafts
        # The most alternatives of a token that a row's log-probabilities have; None where no row keeps any
        self.num_alternatives = max((n for each in rows if (n := each.settings.logprobs) is not None), default=None)

        self.is_first = torch.arange(self.block_width, device=device) == 0  # [k] bool, the first place of a block
        # [B, k] bool, True in column 0 of exact rows: that token is plain decoding's own, and always revealed
        self.takes_next = self.is_exact[:, None] & self.is_first if self.has_exact else None
        # [B] bool, rows whose block's first token is predicted by the last token before the block; None where no row's is
        self.first_is_causal = self.is_ntp | self.is_exact if self.has_ntp or self.has_exact else None
        if facts is None or facts.first_token_from_causal:
            self.first_is_causal = torch.ones_like(self.is_ntp)
        # [B, k] how far before a position of the block stands the output that predicts it
        self.shifts = torch.ones((len(rows), self.block_width), dtype=torch.long, device=device)
        if facts is not None and not facts.logit_shift:
            from_before = torch.zeros_like(self.is_ntp) if self.first_is_causal is None else self.first_is_causal
            self.shifts[:] = from_before[:, None] & self.is_first
