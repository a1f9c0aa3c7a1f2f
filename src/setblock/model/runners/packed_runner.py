"""Run passes of rows that come and go: tokens packed in one row, keys and values in pages.

Knows how a feed becomes the model's arguments. Knows nothing of who holds which page, nor why.
"""

from collections.abc import Sequence
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PreTrainedModel

from setblock import devices
from setblock.masks import MaskMod, decode_mask
from setblock.model.adapter.gate import block_only
from setblock.model.attention.invariant import least_rows
from setblock.model.attention.packed import Rectangle, packed_attention
from setblock.model.protocol.feed import Feed
from setblock.model.protocol.language_model import as_it_is
from setblock.model.runners.forward import logits_at
from setblock.model.runners.paged_cache import PagedCache


class PackedRunner:
    """See `setblock.model.protocol.language_model.PagedRunner`."""

    fuses_commit = True
    pads = False
    fixed_keys = None
    compiled = staticmethod(as_it_is)
    shares_pages = True

    def __init__(self, model: PreTrainedModel, *, pages: int, page_tokens: int) -> None:
        layers = model.config.get_text_config().num_hidden_layers
        self.page_tokens = page_tokens
        self.cache = PagedCache(layers=layers, slots=pages * page_tokens)
        self._model = model
        self._pages = torch.zeros((0, 0), dtype=torch.long)

    def place(self, pages: Sequence[Sequence[int]], ids: Sequence[int]) -> None:
        """Say which pages hold the positions of each row of the batch, from the first on; `ids` say nothing more."""
        most = max(map(len, pages), default=0)
        self._pages = torch.tensor([[*each, *[0] * (most - len(each))] for each in pages], device=self._model.device)

    def logits(self, feed: Feed) -> Tensor:
        """Run one pass over the N real tokens, [1, N]. Waits for the device on a CPU only, where that costs nothing."""
        # 1. Where tokens are in the packed row, and where in the cache
        plan = feed.plan
        assert plan.spans is not None
        lengths, ends = [end - start for start, end in plan.spans], [end for _, end in plan.spans]
        place = (feed.is_real.flatten().cumsum(dim=0) - 1).view(feed.is_real.shape)  # [A, Q]
        slots = self._slots(plan.rows, plan.ends, plan.visible)  # [A, visible]

        # 2. The attention's rectangles
        rectangles, offset = [], 0
        cells = [torch.empty(0)] * len(lengths)  # of each row: where its tokens are among the queries of all rectangles
        for rows in rectangles_of(lengths, ends):
            queries, keys = max(lengths[row] for row in rows), max(ends[row] for row in rows)
            for row in rows:
                cells[row] = torch.arange(offset, offset + lengths[row])
                offset += queries
            index = self._on_device(torch.tensor(rows))
            rectangles.append(
                Rectangle(
                    tokens=place[index, :queries],
                    slots=slots[index, :keys],
                    mask_mod_for=partial(
                        _mask, positions=feed.positions[index, :queries], limits=feed.limits[index, :queries]
                    ),
                )
            )

        # 3. The real tokens; one alone gets company where it could get other bits alone
        width = feed.tokens.shape[1]
        starts = range(0, len(lengths) * width, width)
        real = torch.cat([torch.arange(n) + start for start, n in zip(starts, lengths, strict=True)])
        real, of_cells = self._on_device(real), self._on_device(torch.cat(cells))  # [N]
        packed = [each.flatten()[real] for each in (feed.tokens, feed.positions, feed.in_block)]
        written = slots.gather(1, feed.positions).flatten()[real]
        if len(written) < (least := least_rows(self._model.dtype, self._model.device)):
            packed, of_cells = [each.repeat(least) for each in packed], of_cells.repeat(least)
            written = pad(written, (0, least - 1), value=self.cache.spill_slot)
        tokens, positions, in_block = packed
        self.cache.write_to(written)

        # 4. Forward; the head sees what is wanted, or one output if that is none. To ask how many are wanted is a wait
        outputs, takes_all = place.gather(1, feed.outputs), devices.waits(place.device)  # [A, m]
        index = outputs.flatten() if takes_all else outputs[feed.wanted]  # [M]
        with (
            packed_attention(self._model, rectangles, of_cells) as mask,
            block_only(self._model, in_block[None]),
        ):
            logits = logits_at(
                self._model,
                index if len(index) else place[0, :1],
                input_ids=tokens[None],
                position_ids=positions[None],
                attention_mask=mask,
                cache=self.cache,
            ).float()  # [M, V]
        return logits.view(*outputs.shape, -1) if takes_all else logits[: len(index)]

    def _on_device(self, numbers: Tensor) -> Tensor:
        return numbers.to(self._model.device, non_blocking=True)

    def _slots(self, rows: Tensor, ends: Tensor, visible: int) -> Tensor:
        """Return [A, visible] the slot of each position, and after a row's end the empty slot. What others have left in
        a page may be no number, and a weight of 0 does not make it one."""
        positions = torch.arange(visible, device=rows.device)
        pages = self._pages[rows][:, positions // self.page_tokens]
        slots = pages * self.page_tokens + positions % self.page_tokens
        return torch.where(positions < ends[:, None], slots, self.cache.empty_slot)


def _mask(window: int | None, *, positions: Tensor, limits: Tensor) -> MaskMod:
    return decode_mask(position_ids=positions, limits=limits, window=window)


def rectangles_of(queries: Sequence[int], keys: Sequence[int]) -> list[list[int]]:
    """Group rows so that joining a group adds at most twice the pairs of queries and keys that a row has, and a few.

    Args:
        queries, keys: [A] of each row.
    """
    groups: list[list[int]] = []
    width = height = 0  # of the last group
    for row in sorted(range(len(queries)), key=lambda row: (-queries[row], -keys[row], row)):
        wider, own = max(width, keys[row]), queries[row] * keys[row]
        if groups:
            count = len(groups[-1])
            added = height * ((count + 1) * wider - count * width)
            if added <= 2 * own + FEW_PAIRS:
                groups[-1].append(row)
                width = wider
                continue
        groups.append([row])
        height, width = queries[row], keys[row]
    return groups


FEW_PAIRS = 1 << 15
"""What one more rectangle costs in addition to its pairs: calls that take their time however little they do."""
