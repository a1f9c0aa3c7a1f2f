"""Apply what requests ask of the logits before a token is chosen: biases, bans, penalties.

Knows one row of rules for each request. The order is that of Transformers' `generate`: bias, repetition penalty, bans;
temperature and the cuts of the distribution come after, in `choice`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.state.state import NEVER, BatchState
from setblock.decoding.state.terms import RowTerms


@dataclass(frozen=True)
class LogitRules:
    """Hold the rules of a batch; each is None where no request of the batch has it.

    Attributes:
        bias: [B, V] float32, added; -inf for banned tokens.
        penalty: [B] float32, the repetition penalty.
        ends: [B, V] bool, tokens that end a row's answer, with `first_end`.
        first_end: [B] int64, the first position at which they may stand.
    """

    bias: Tensor | None
    penalty: Tensor | None
    ends: Tensor | None
    first_end: Tensor | None

    def apply(self, logits: Tensor, *, positions: Tensor, first_seen: Tensor | None) -> Tensor:
        """Return the logits that tokens are chosen from.

        Args:
            logits: [B, m, V] float32, as the model gave them.
            positions: [B, m] int64, the absolute positions they are for.
            first_seen: [B, V] int64, where each token first stands; needed for a penalty only.
        """
        if self.bias is not None:
            logits = logits + self.bias[:, None]
        if self.penalty is not None:
            assert first_seen is not None
            penalty = self.penalty[:, None, None]
            penalised = torch.where(logits > 0, logits / penalty, logits * penalty)
            logits = torch.where(first_seen[:, None] < positions[..., None], penalised, logits)
        if self.ends is not None and self.first_end is not None:
            too_early = positions < self.first_end[:, None]
            logits = logits.masked_fill(too_early[..., None] & self.ends[:, None], -torch.inf)
        return logits


def logit_rules(
    settings: Sequence[DecodingSettings], terms: Sequence[RowTerms], *, vocab_size: int, device: torch.device
) -> LogitRules:
    """Return the rules of a batch of requests."""
    bias = penalty = is_end = first_end = None
    if any(each.logit_bias or each.banned_tokens for each in settings):
        bias = torch.zeros((len(settings), vocab_size))
        for row, each in enumerate(settings):
            for token_id, value in each.logit_bias.items():
                bias[row, token_id] = value
            bias[row, list(each.banned_tokens)] = -torch.inf
        bias = bias.to(device)
    if any(each.repetition_penalty != 1 for each in settings):
        penalty = torch.tensor([each.repetition_penalty for each in settings], device=device, dtype=torch.float32)
    if any(each.min_new_tokens for each in settings):
        is_end = torch.zeros((len(settings), vocab_size), dtype=torch.bool)
        for row, of_row in enumerate(terms):
            is_end[row, list(of_row.ends)] = True
        is_end = is_end.to(device)
        first = [row.prompt_length + each.min_new_tokens for each, row in zip(settings, terms, strict=True)]
        first_end = torch.tensor(first, device=device)
    return LogitRules(bias, penalty, is_end, first_end)


def first_seen(state: BatchState, vocab_size: int) -> Tensor:
    """Return the position [B, V] at which each token first occurs. Revealed tokens of a block are seen by all of the
    block; but in exact rows not by its first position, where the token is next-token decoding's."""
    positions, start = state.columns.expand_as(state.tokens), state.block.start[:, None]
    column = (positions - start).clamp(0, state.terms.block_width - 1)
    in_block = (positions >= start) & (positions < state.block.end[:, None]) & state.block.revealed.gather(1, column)
    seen_from = start - 1 + state.terms.is_exact[:, None].long()
    at = torch.where(positions < start, positions, torch.where(in_block, seen_from, NEVER))
    unseen = torch.full((state.batch, vocab_size), NEVER, device=at.device)
    return unseen.scatter_reduce(1, state.tokens.clamp(min=0), at, "amin")
