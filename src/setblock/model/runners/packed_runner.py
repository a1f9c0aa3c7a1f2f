"""Run passes of rows that come and go: tokens packed in one row, keys and values in pages.

Knows how a feed becomes the model's arguments. Knows nothing of who holds which page, nor why.
"""

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel
from transformers.cache_utils import Cache

from setblock import devices
from setblock.model.adapter.gate import block_only
from setblock.model.attention.grouped import GroupedAttention
from setblock.model.attention.packed import Rectangle, packed_attention
from setblock.model.protocol.runtime import Feed, PagedRunner
from setblock.model.runners.forward import FixedLayer, logits_at
from setblock.model.weights import keep_bits


class PackedRunner(PagedRunner):
    """See `setblock.model.protocol.runtime.PagedRunner`."""

    def __init__(self, model: PreTrainedModel, *, pages: int, page_tokens: int) -> None:
        slots, layers = pages * page_tokens, range(model.config.get_text_config().num_hidden_layers)
        self.page_tokens = page_tokens
        # One slot more stays zero: it is read wherever a rectangle of keys is wider than a request. Another is never read:
        # padding is written there
        self._empty_slot, self._spill_slot = slots, slots + 1
        self.cache = Cache(layers=[PagedLayer(batch=slots + 2, slots=1, visible=slots + 2) for _ in layers])
        self._model, self._attention = model, GroupedAttention(model)
        keep_bits(model)
        self._of_one = ON_GPU if devices.waits(model.device) else ON_CPU
        self._pages = torch.zeros((0, 0), dtype=torch.long)

    def place(self, pages: Sequence[Sequence[int]], ids: Sequence[int]) -> None:
        """Say which pages hold the positions of each row of the batch, from the first on; `ids` say nothing more."""
        most = max(map(len, pages), default=0)
        self._pages = torch.tensor([[*each, *[0] * (most - len(each))] for each in pages], device=self._model.device)

    def logits(self, feed: Feed) -> Tensor:
        """Run one pass over the N real tokens, [1, N]. Waits for the device on a CPU only, where that costs nothing."""
        # 1. Where tokens are in the packed row, and where in the cache
        plan, device = feed.plan, self._model.device
        assert plan.spans is not None
        lengths, ends = [span.tokens for span in plan.spans], [span.end for span in plan.spans]
        place = (feed.is_real.flatten().cumsum(dim=0) - 1).view(feed.is_real.shape)  # [A, Q]
        slots = self._slots(plan.rows, plan.ends, self._attention.whole_chunks(plan.visible))  # [A, at least visible]

        # 2. The attention's rectangles
        of_tokens = (place, feed.positions, feed.limits)
        rectangles, offset = [], 0
        firsts = np.empty(len(lengths), dtype=int)  # the place of each row's first token among all rectangles' queries
        for rows in rectangles_of(lengths, ends, of_one=self._of_one):
            queries = max(lengths[row] for row in rows)
            keys = self._attention.whole_chunks(max(ends[row] for row in rows))
            firsts[rows] = range(offset, offset + len(rows) * queries, queries)
            offset += len(rows) * queries
            index = torch.tensor(rows).to(device, non_blocking=True)
            rectangles.append(Rectangle(slots[index, :keys], *(each[index, :queries] for each in of_tokens)))

        # 3. The real tokens, the last one repeated where products are to have more rows
        width = feed.tokens.shape[1]
        row, column = np.nonzero(np.arange(width) < np.asarray(lengths)[:, None])  # [N] each
        cells = torch.from_numpy(np.stack([row * width, firsts[row]]) + column)
        real, of_cells = cells.to(device, non_blocking=True)
        packed = [each.flatten()[real] for each in (feed.tokens, feed.positions, feed.in_block)]
        written = slots.gather(1, feed.positions).flatten()[real]
        if more := self._attention.filled(len(written)) - len(written):
            *packed, of_cells = (torch.cat([each, each[-1:].expand(more)]) for each in (*packed, of_cells))
            written = pad(written, (0, more), value=self._spill_slot)
        tokens, positions, in_block = packed
        for layer in self.cache.layers:
            layer.written = written

        # 4. Forward; the head sees what is wanted, or one output if that is none. To ask how many are wanted is a wait
        outputs, takes_all = place.gather(1, feed.outputs), devices.waits(place.device)  # [A, m]
        index = outputs.flatten() if takes_all else outputs[feed.wanted]  # [M]
        with (
            packed_attention(self._model, self._attention, rectangles, of_cells) as mask,
            block_only(self._model, in_block[None]),
        ):
            logits = logits_at(
                self._model,
                index if len(index) else place[0, :1],
                input_ids=tokens[None],
                position_ids=positions[None],
                attention_mask=mask,
                cache=self.cache,
                filled=self._attention.filled,
            ).float()  # [M, V]
        return logits.view(*outputs.shape, -1) if takes_all else logits[: len(index)]

    def _slots(self, rows: Tensor, ends: Tensor, visible: int) -> Tensor:
        """Return [A, visible] the slot of each position, and after a row's end the empty slot. What others have left in
        a page may be no number, and a weight of 0 does not make it one."""
        positions = torch.arange(visible, device=rows.device)
        pages = self._pages[rows][:, (positions // self.page_tokens).clamp(max=self._pages.shape[1] - 1)]
        slots = pages * self.page_tokens + positions % self.page_tokens
        return torch.where(positions < ends[:, None], slots, self._empty_slot)


def rectangles_of(queries: Sequence[int], keys: Sequence[int], *, of_one: int) -> list[list[int]]:
    """Group rows, of so many `queries` and `keys` [A] each, so that their rectangles cost least together.

    A rectangle costs `of_one`, pairs of a query and a key, and for each row as many keys as the widest has, times its most
    queries and `_OF_KEYS`. Rows are in the order of their queries, those of equal queries in the order of their keys, and a
    group is some that follow each other. Rows with as many queries and about as many keys stay together.
    """
    order = sorted(range(len(queries)), key=lambda row: (-queries[row], -keys[row], row))
    alike = [list(rows) for _, rows in groupby(order, key=lambda row: (queries[row], keys[row].bit_length()))]
    best: list[tuple[float, list[list[int]]]] = [(0.0, [])]  # for the first parts: what they cost, and their groups
    for end in range(1, len(alike) + 1):
        found: list[tuple[float, int]] = []
        count = width = 0
        for start in reversed(range(end)):
            first = alike[start][0]
            count, width = count + len(alike[start]), max(width, keys[first])
            found.append((best[start][0] + of_one + count * width * (queries[first] + _OF_KEYS), start))
        cost, start = min(found)
        best.append((cost, [*best[start][1], [row for rows in alike[start:end] for row in rows]]))
    return best[-1][1]


_OF_KEYS = 16  # queries that cost as much as it does to take a key and its value from the cache
ON_CPU, ON_GPU = 5_000, 1 << 15
"""What one more rectangle costs: calls that take their time however little they do, in which a GPU computes more pairs."""


class PagedLayer(FixedLayer):
    """Hold one layer [slots + 2, H, 1, D] of a cache that a pass gets whole: each slot is a row of one position, so that it is
    in one piece."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [1, H, N, D] states to their slots; return all slots, [1, H, slots + 2, D]."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        self.keys[self.written] = key_states.transpose(0, 2)
        self.values[self.written] = value_states.transpose(0, 2)
        return self.keys.transpose(0, 2), self.values.transpose(0, 2)
