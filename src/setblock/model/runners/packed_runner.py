"""The runner for rows that come and go: tokens are packed in one row, keys and values are in pages. The caller allocates pages.

The model is called with tokens [1, N]: all layers but attention see N real tokens and no padding. In the attention layers the
queries are spread over rectangles [a, Q] of rows of similar sizes, and attend to the keys [a, K] in their slots of the cache.
The model's own attention function computes this, so that soft-capping and the like still apply.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import pad
from transformers import AttentionInterface, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock import devices
from setblock.locks import one_at_a_time
from setblock.masks import AttentionMask, by_layer_type, decode_mask
from setblock.model.adapter.adapter import block_only
from setblock.model.attention.attention import OURS, mask_form
from setblock.model.attention.grouped import GroupedAttention, attention_by
from setblock.model.protocol.runtime import ModelInput, Runner
from setblock.model.runners.forward import FiniteBlocks, FixedLayer, logits_at
from setblock.model.weights import make_batch_invariant


class PackedRunner(Runner):
    """See `setblock.model.protocol.runtime.Runner`."""

    def __init__(self, model: PreTrainedModel, *, pages: int, page_tokens: int) -> None:
        slots, layers = pages * page_tokens, range(model.config.get_text_config().num_hidden_layers)
        self.pages, self.page_tokens = pages, page_tokens
        # Two more slots. One stays zero, and is read where a rectangle of keys is wider than a request. The other is never
        # read: padding is written there
        self.empty_slot, self.spill_slot = slots, slots + 1
        self.cache = Cache(layers=[PagedLayer(batch=slots + 2, slots=1, visible=slots + 2) for _ in layers])
        self.model, self.attention = model, GroupedAttention(model)
        self._blocks = FiniteBlocks(self.cache, model.device)
        make_batch_invariant(model)
        self._of_one = ON_GPU if devices.waits(model.device) else ON_CPU
        self._pages = torch.zeros((0, 0), dtype=torch.long)

    def place(self, pages: Sequence[Sequence[int]], ids: Sequence[int]) -> None:
        """Set the pages of each row of the batch, from the first position on. `ids` are not used."""
        most = max(map(len, pages), default=0)
        self._pages = torch.tensor([[*each, *[0] * (most - len(each))] for each in pages], device=self.model.device)

    def computed(self, tokens: int) -> int:
        """Return the number to which N = `tokens` real tokens are padded."""
        return self.attention.filled(tokens)

    @one_at_a_time(of=lambda runner: runner.model)
    def logits(self, inputs: ModelInput) -> Tensor:
        """Run one pass over the N real tokens, [1, N]. The host waits for the device only on a CPU, where this is free."""
        # 1. The places of tokens in the packed row and in the cache
        plan, device = inputs.plan, self.model.device
        assert plan.schedules is not None
        lengths, ends = (
            [scheduled.tokens for scheduled in plan.schedules],
            [scheduled.end for scheduled in plan.schedules],
        )
        place = (inputs.is_real.flatten().cumsum(dim=0) - 1).view(inputs.is_real.shape)  # [A, Q]
        slots = self.slots(
            self._pages[plan.rows], plan.ends, self.attention.whole_chunks(plan.visible)
        )  # [A, at least visible]

        # 2. The attention's rectangles
        of_tokens = (place, inputs.positions, inputs.limits)
        rectangles, offset = [], 0
        firsts = np.empty(len(lengths), dtype=int)  # the place of each row's first token among all rectangles' queries
        for rows in rectangles_of(lengths, ends, of_one=self._of_one):
            queries = max(lengths[row] for row in rows)
            keys = self.attention.whole_chunks(max(ends[row] for row in rows))
            firsts[rows] = range(offset, offset + len(rows) * queries, queries)
            offset += len(rows) * queries
            index = torch.tensor(rows).to(device, non_blocking=True)
            rectangles.append(Rectangle(slots[index, :keys], *(each[index, :queries] for each in of_tokens)))

        # 3. The real tokens; the last one is repeated if products need more rows
        width = inputs.tokens.shape[1]
        row, column = np.nonzero(np.arange(width) < np.asarray(lengths)[:, None])  # [N] each
        cells = torch.from_numpy(np.stack([row * width, firsts[row]]) + column)
        real, of_cells = cells.to(device, non_blocking=True)
        packed = [each.flatten()[real] for each in (inputs.tokens, inputs.positions, inputs.in_block)]
        written = slots.gather(1, inputs.positions).flatten()[real]
        if more := self.attention.filled(len(written)) - len(written):
            *packed, of_cells = (torch.cat([each, each[-1:].expand(more)]) for each in (*packed, of_cells))
            written = pad(written, (0, more), value=self.spill_slot)
        tokens, positions, in_block = packed
        for layer in self.cache.layers:
            layer.written = written

        # 4. Forward; the head sees the wanted outputs, at least one. Where reading their number is a wait, it sees all
        outputs, takes_all = place.gather(1, inputs.outputs), devices.waits(place.device)  # [A, m]
        index = outputs.flatten() if takes_all else outputs[inputs.wanted]  # [M]
        with (
            packed_attention(self.model, self.attention, rectangles, of_cells) as mask,
            block_only(self.model, in_block[None]),
        ):
            run = partial(
                logits_at,
                self.model,
                index if len(index) else place[0, :1],
                input_ids=tokens[None],
                position_ids=positions[None],
                attention_mask=mask,
                cache=self.cache,
                filled=self.attention.filled,
            )
            logits = self._blocks.logits(run, inputs, in_block[None]).float()  # [M, V]
        return logits.view(*outputs.shape, -1) if takes_all else logits[: len(index)]

    def slots(self, pages: Tensor, ends: Tensor, visible: int) -> Tensor:
        """Return the slot of each position, [A, visible], of rows with `pages` [A, n]; after a row's end it is the empty slot.
        Other rows may have left NaN in a page, and 0 times NaN is NaN."""
        positions = torch.arange(visible, device=pages.device)
        pages = pages[:, (positions // self.page_tokens).clamp(max=pages.shape[1] - 1)]
        slots = pages * self.page_tokens + positions % self.page_tokens
        return torch.where((positions < ends[:, None]) & (pages >= 0), slots, self.empty_slot)


def rectangles_of(queries: Sequence[int], keys: Sequence[int], *, of_one: int) -> list[list[int]]:
    """Group rows with `queries` and `keys` [A] each so that the total cost of their rectangles is least.

    The cost of a rectangle is `of_one`, in pairs of a query and a key, plus for each row the most keys of any of its rows times
    (the most queries + `_OF_KEYS`). Rows are sorted by their queries, then by their keys, and a group is a contiguous part of
    that order. Rows with equal queries and similar keys stay together.
    """
    order = sorted(range(len(queries)), key=lambda row: (-queries[row], -keys[row], row))
    alike = [list(rows) for _, rows in groupby(order, key=lambda row: (queries[row], keys[row].bit_length()))]
    best: list[tuple[float, list[list[int]]]] = [(0.0, [])]  # for each number of first parts: their cost and groups
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


_OF_KEYS = 16  # the cost of reading a key and its value from the cache, in queries
ON_CPU, ON_GPU = 5_000, 1 << 15
"""The fixed cost of a rectangle, in pairs: the time of its calls, in which a GPU computes more pairs than a CPU."""


class PagedLayer(FixedLayer):
    """One layer [slots + 2, H, 1, D] of a cache that each pass gets in full. Each slot is a row of one position, and so is
    contiguous in memory."""

    page_tokens: int | None = None  # how many positions a page has, in passes that are given pages

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write the states [A, H, Q, D] of A Q tokens to their slots; return all slots, [1, H, slots + 2, D], or all pages,
        [pages, page_tokens, H, D], if `page_tokens` is set."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        key_states, value_states = self.finite(key_states, value_states)
        self.keys[self.written], self.values[self.written] = (
            each.transpose(1, 2).flatten(0, 1)[:, :, None] for each in (key_states, value_states)
        )
        if self.page_tokens is not None:
            keys, values = (
                each[:-2].view(-1, self.page_tokens, *each.shape[1::2]) for each in (self.keys, self.values)
            )
            return keys, values
        return self.keys.transpose(0, 2), self.values.transpose(0, 2)


_NAME = f"{OURS}packed"

_ALIGNED = 16
"""Each mask begins at a multiple of this many numbers: GPUs read masks in such pieces, and fail on unaligned ones."""


@dataclass(frozen=True)
class Rectangle:
    """Rows whose attention is computed together: a rows of at most Q queries and K keys."""

    slots: Tensor  # [a, K] int64, the slot of the cache of each key
    tokens: Tensor  # [a, Q] int64, the place of each query among the N tokens; arbitrary where a row has fewer than Q
    positions: Tensor  # [a, Q] int64 of each query, see `masks.decode_mask`
    limits: Tensor  # the same


@dataclass(frozen=True)
class _Layout:
    rectangles: Sequence[Rectangle]
    cells: Tensor
    name: str  # Transformers' name of the function that attends a rectangle
    mask_rows: Callable[[int], int]  # maps queries to the rows of their mask: more if made for a group
    rows: dict[tuple[int, int], Tensor] = field(default_factory=dict)  # for each rectangle's tokens or slots, all heads


_LAYOUT: ContextVar[_Layout] = ContextVar("layout")


@contextmanager
def packed_attention(
    model: PreTrainedModel, attention: GroupedAttention, rectangles: Sequence[Rectangle], cells: Tensor
) -> Iterator[AttentionMask]:
    """While active, make the model compute its attention in the rectangles. Yield the `attention_mask` argument to call it
    with. `cells` [N] int64 is the place of each token among the concatenated queries of all rectangles."""
    config = attention.config
    implementation = str(config._attn_implementation)
    # FlexAttention's block masks don't come in rectangles this small; SDPA has no soft-capping
    if implementation == "flex_attention":
        implementation = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
    for_groups = implementation == "sdpa" and all(each.tokens.shape[1] <= attention.most_queries for each in rectangles)
    most = max(max(*each.tokens.shape, each.slots.shape[1]) for each in rectangles)
    form = mask_form(model, most=most, device=model.device, implementation=implementation)

    def flat(window: int | None) -> Tensor:
        """Return the masks of all rectangles, concatenated, [1, 1, 1, sum of a Q K], or of a `mask_rows` K for groups, each
        padded to a multiple of `_ALIGNED`."""
        masks = []
        for each in rectangles:
            (rows, queries), keys = each.tokens.shape, each.slots.shape[1]
            mask_mod = decode_mask(position_ids=each.positions, limits=each.limits, window=window)
            mask = form.realised(mask_mod, batch=rows, queries=queries, keys=keys)
            if for_groups:  # once, not in each layer
                mask = attention.mask(mask, queries=queries)
            assert isinstance(mask, Tensor)
            masks.append(pad(mask.flatten(), (0, -mask.numel() % _ALIGNED)))
        return torch.cat(masks)[None, None, None]

    name = attention.name if implementation == "sdpa" else implementation
    reset = _LAYOUT.set(_Layout(rectangles, cells, name, attention.mask_rows if for_groups else int))
    try:
        mask = by_layer_type(form.windows, flat)
        with attention_by(_NAME, config):
            yield mask
    finally:
        _LAYOUT.reset(reset)


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    """Compute attention by Transformers' interface: query [1, H, N, D], and the whole cache as key and value
    [1, H', slots, D]. Return [1, N, H, D]."""
    layout = _LAYOUT.get()
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)  # each model has its own
    base = ALL_ATTENTION_FUNCTIONS.get_interface(layout.name, eager)
    queries, keys, values = (each[0].transpose(0, 1) for each in (query, key, value))  # [N or slots, H, D]
    attended, masks = [], attention_mask.flatten()
    for each in layout.rectangles:
        (rows, length), width = each.tokens.shape, each.slots.shape[1]
        count = rows * layout.mask_rows(length) * width
        mask, masks = masks[:count].view(rows, 1, -1, width), masks[count + -count % _ALIGNED :]
        places = ((queries, each.tokens), (keys, each.slots), (values, each.slots))
        result, _ = base(module, *(_taken(*pair, layout) for pair in places), mask, **kwargs)  # [a, Q, H, D]
        attended.append(result.flatten(0, 1))
    return torch.cat(attended).index_select(0, layout.cells)[None], None


def _taken(states: Tensor, places: Tensor, layout: _Layout) -> Tensor:
    """Return the states [N, H, D] at `places` [a, n] as [a, H, n, D], in a memory order that needs no further copy. On a CPU
    `index_select` copies contiguous parts at once, while indexing copies single numbers."""
    heads = states.shape[1]
    rows = layout.rows.get((id(places), heads))
    if rows is None:
        each = torch.arange(heads, device=places.device)
        rows = layout.rows[id(places), heads] = (places[:, None] * heads + each[:, None]).flatten()
    return states.reshape(-1, states.shape[2]).index_select(0, rows).view(len(places), heads, -1, states.shape[2])


AttentionInterface.register(_NAME, _attend)
