"""Random passes over a paged cache, and attention computed plainly."""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.masks import decode_mask, to_dense
from setblock.model.attention.paged_attention import PLAIN, PagedAttention, PagedInput, Scores


@dataclass(frozen=True)
class Pass:
    """Queries, the cache of a layer and what each query sees. The last row is padding."""

    query: Tensor
    keys: Tensor
    values: Tensor
    given: PagedInput

    def by(self, attention: PagedAttention, window: int | None = None, scores: Scores = PLAIN) -> Tensor:
        """Attention [R, Q, H, D]."""
        places, mask = attention.places(self.given), attention.mask(self.given, window)
        return attention.attend(self.query, self.keys, self.values, places, mask, scores)

    def naive(self, window: int | None = None, form: Scores = PLAIN) -> Tensor:
        """The same in float64, head by head, over copied keys under a whole mask."""
        given, (rows, heads, queries, size) = self.given, self.query.shape
        # What nobody sees may be NaN
        keys, values = (
            each[given.page_table].flatten(1, 2).double().nan_to_num(0.0) for each in (self.keys, self.values)
        )
        mask = to_dense(
            decode_mask(position_ids=given.positions, limits=given.limits, window=window),
            batch=rows,
            queries=queries,
            keys=keys.shape[1],
        )
        found = torch.zeros(rows, queries, heads, size, dtype=torch.float64)
        for row in range(rows):
            for head in range(heads):
                group = head * keys.shape[2] // heads
                scores = self.query[row, head].double() @ keys[row, :, group].T / size**0.5
                if form.softcap is not None:
                    scores = form.softcap * (scores / form.softcap).tanh()
                scores = scores.masked_fill(~mask[row, 0], -torch.inf)
                if form.sinks is not None:
                    scores = torch.cat([scores, form.sinks[head].double().expand(queries, 1)], dim=1)
                weights = scores.softmax(dim=-1)[:, : keys.shape[1]]
                found[row, :, head] = weights.nan_to_num(0.0) @ values[row, :, group]
        return found


def random_pass(
    *,
    rows: int,
    groups: int,
    of_group: int,
    queries: int,
    size: int,
    page_tokens: int = 16,
    most: int = 4,
    seed: int = 0,
    has_nan: bool = False,
) -> Pass:
    """A pass whose rows feed some tokens causally and then a block, at random places, on random pages."""
    numbers, pages, capacity = torch.Generator().manual_seed(seed), rows * most + 1, page_tokens * most
    keys, values = torch.randn(2, pages, page_tokens, groups, size, generator=numbers)
    query = torch.randn(rows, queries, groups * of_group, size, generator=numbers).transpose(1, 2)  # as layers have it
    table = torch.randperm(pages, generator=numbers)[: rows * most].view(rows, most)
    start = torch.randint(0, capacity - queries + 1, (rows, 1), generator=numbers)
    positions = start + torch.arange(queries)
    causal = torch.randint(0, queries + 1, (rows, 1), generator=numbers)
    limits = torch.where(torch.arange(queries) < causal, positions + 1, start + queries)
    limits[-1] = 0
    ends = limits.amax(dim=1, keepdim=True)
    if has_nan:  # what other rows left behind the ends
        slots = table.repeat_interleave(page_tokens, dim=1) * page_tokens + torch.arange(page_tokens).repeat(most)
        unseen = torch.ones(pages * page_tokens, dtype=torch.bool)
        unseen[slots[torch.arange(capacity) < ends]] = False
        for each in (keys, values):
            each.view(-1, groups, size)[unseen] = torch.nan
    return Pass(query, keys, values, PagedInput(table, positions, limits, pages, page_tokens))


def random_scores(heads: int, *, is_capped: bool, has_sinks: bool) -> Scores:
    """How a layer of some models computes its scores."""
    sinks = torch.linspace(-1.0, 3.0, heads) if has_sinks else None
    return Scores(softcap=1.5 if is_capped else None, sinks=sinks)
