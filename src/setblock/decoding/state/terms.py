"""Define the terms of rows, which never change: of one row as numbers that the host reads without waiting for the device, of a
batch as tensors.

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
    """Hold the terms of one row.

    Attributes:
        settings: of the request, with the operating point decided.
        block_size: k; 1 in method `ntp`. Where the answer is short, blocks are smaller than those that were asked for.
        prompt_length: tokens of the prompt.
        limit: the position past the last one that may be generated.
        ends: token ids that end the answer.
        branches: the most that a pass is fed.
    """

    settings: DecodingSettings
    block_size: int
    prompt_length: int
    limit: int
    ends: tuple[int, ...]
    branches: int = 0

    @property
    def adapts_drafts(self) -> bool:
        """Return whether each pass decides anew how much is drafted."""
        return self.settings.method == "exact" and self.settings.drafts == "adaptive"

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
        waits: whether a host that reads a value has to wait for the device.
        block_width: k.
        capacity: C, past every row's block, rounded up.
        has_sbd, has_exact, has_ntp: whether any row is decoded by the method.
        mask_token: what is written where nothing is revealed.
        takes_first_at_once: whether every row takes its block's first token in the pass of the causal logit, so that
            `first_logits` is never needed.
        prompt_length, limit, block_size: [B] as in `RowTerms`.
        ends: [B, E] token ids that end an answer, filled up with `NO_TOKEN`.
        is_ntp: [B] bool, rows that decode one token a pass.
        is_exact: [B] bool, rows whose blocks are drafts: what is committed is checked.
        branches: [B] as in `RowTerms`.
        draft_lookup: [B] of exact rows, how many tokens must match for a draft to be copied from the text; 0 for never.
        is_first: [k] bool, the first place of a block.
        takes_next: [B, k] bool, True in column 0 of exact rows: that token is plain decoding's own, and always revealed. None
            where no row is exact.
        first_is_causal: [B] bool, rows whose block's first token is predicted by the last token before the block; None where no
            row's is.
        seeds: [B] of each row's draws.
        shifts: [B, k] how far before a position of the block stands the output that predicts it.
        confidences: the bounds between the kinds of what the model drafts, float32.
        is_all_exact, is_all_causal, feeds_whole: whether all rows are exact, or never fed a block, or always a whole one.
        num_alternatives: the most alternatives of a token that a row's log-probabilities have; None where no row keeps any.
        copies_drafts, adapts_drafts: whether the drafts of any row may be copied from the text, or vary in length.
    """

    def __init__(self, rows: Sequence[RowTerms], facts: SBDFacts | None, *, device: torch.device) -> None:
        self.rows, self.facts, self.waits = tuple(rows), facts, devices.waits(device)
        self.block_width = max(each.block_size for each in rows)
        self.capacity = fixed_capacity(max(each.limit for each in rows) + self.block_width)
        methods = {each.settings.method for each in rows}
        self.has_sbd, self.has_exact, self.has_ntp = ("sbd" in methods, "exact" in methods, "ntp" in methods)
        self.mask_token = NO_TOKEN if facts is None or facts.mask_token_id is None else facts.mask_token_id
        self.takes_first_at_once = facts is None or not self.has_sbd
        most_ends = max(1, *(len(each.ends) for each in rows))

        def column(values: Sequence[object]) -> torch.Tensor:
            return torch.tensor(values, device=device)

        self.prompt_length = column([each.prompt_length for each in rows])
        self.limit = column([each.limit for each in rows])
        self.ends = column([[*each.ends, *[NO_TOKEN] * (most_ends - len(each.ends))] for each in rows])
        self.block_size = column([each.block_size for each in rows])
        self.is_ntp = column([each.settings.method == "ntp" for each in rows])
        self.is_exact = column([each.settings.method == "exact" for each in rows])
        self.branches = column([each.branches for each in rows])
        self.draft_lookup = column([each.settings.draft_lookup or 0 for each in rows])
        self.seeds = column([each.settings.seed for each in rows])
        self.confidences = column(CONFIDENCES)
        self.is_all_exact = methods == {"exact"}
        self.is_all_causal = facts is None or methods == {"ntp"}
        self.num_alternatives = max((n for each in rows if (n := each.settings.logprobs) is not None), default=None)
        self.copies_drafts = any(each.settings.draft_lookup for each in rows)
        self.adapts_drafts = any(each.adapts_drafts for each in rows)
        self.feeds_whole = facts is not None and not self.has_ntp and not self.adapts_drafts

        self.is_first = torch.arange(self.block_width, device=device) == 0
        self.takes_next = self.is_exact[:, None] & self.is_first if self.has_exact else None
        self.first_is_causal = self.is_ntp | self.is_exact if self.has_ntp or self.has_exact else None
        if facts is None or facts.first_token_from_causal:
            self.first_is_causal = torch.ones_like(self.is_ntp)
        self.shifts = torch.ones((len(rows), self.block_width), dtype=torch.long, device=device)
        if facts is not None and not facts.logit_shift:
            from_before = torch.zeros_like(self.is_ntp) if self.first_is_causal is None else self.first_is_causal
            self.shifts[:] = from_before[:, None] & self.is_first
