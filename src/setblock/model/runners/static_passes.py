"""Passes of fixed sizes over the pages of a `PackedRunner`: R rows of Q tokens each, padding included, and K keys of a row.

Nothing here is read by the host, copied from it, or has a size that depends on values, so that a pass can be captured as one
CUDA graph and replayed. What a pass reads is at fixed addresses: the page table, the cache, and the inputs of its caller.
"""

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from setblock.locks import one_at_a_time
from setblock.masks import AttentionMask, by_layer_type, decode_mask
from setblock.model.adapter.adapter import block_only
from setblock.model.attention.attention import OURS, mask_form
from setblock.model.attention.grouped import attention_by
from setblock.model.protocol.runtime import ModelInput
from setblock.model.runners.forward import logits_at
from setblock.model.runners.packed_runner import PackedRunner

LEAST_KEYS = 256
"""The smallest K. Larger ones are powers of two."""


NO_PAGE = -1
"""In a page table: positions for which a row has no page."""


class StaticPasses:
    """Runs passes of fixed sizes with the cache of a runner, for the rows of a static table."""

    def __init__(self, runner: PackedRunner, *, rows: int, positions: int) -> None:
        """Make the page table of `rows` rows of up to `positions` positions each."""
        self._runner, self._model = runner, runner.model
        self._most_keys = max(LEAST_KEYS, 1 << (positions - 1).bit_length())
        pages = -(-self._most_keys // runner.page_tokens)
        self._pages = torch.full((rows, pages), NO_PAGE, device=self._model.device)
        self._placed: dict[int, list[int]] = {}  # what `_pages` says of each row
        config = self._model.config.get_text_config()
        implementation = str(config._attn_implementation)
        if implementation == "flex_attention":  # as in `packed_attention`
            implementation = "eager" if getattr(config, "attn_logit_softcapping", None) else "sdpa"
        self._name = runner.attention.name if implementation == "sdpa" else implementation
        self._form = mask_form(
            self._model, most=self._most_keys, device=self._model.device, implementation=implementation
        )

    def keys_for(self, positions: int) -> int:
        """Return K, the keys of each row in a pass whose rows end at `positions` at the latest."""
        return min(self._most_keys, max(LEAST_KEYS, 1 << (positions - 1).bit_length()))

    def place(self, rows: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Write the pages of rows of the table, from the first position on, as far as they have changed."""
        changed = [(row, list(each)) for row, each in zip(rows, pages, strict=True) if self._placed.get(row) != each]
        if not changed:
            return
        width = max(max(len(each), len(self._placed.get(row, ()))) for row, each in changed)
        table = torch.tensor([[*each, *[NO_PAGE] * (width - len(each))] for _, each in changed])
        at = torch.tensor([row for row, _ in changed])
        device = self._pages.device
        self._pages[:, :width].index_copy_(0, at.to(device), table.to(device))
        self._placed.update(changed)

    @one_at_a_time(of=lambda passes: passes._model)
    def logits(self, inputs: ModelInput, *, rows: Tensor) -> Tensor:
        """Run one pass over [R, Q] tokens and return the logits of all outputs, [R, m, V] float32.

        Args:
            inputs: with all its rows taking part, and K as `visible`.
            rows: [R] int64, their rows of the table.
        """
        runner, plan = self._runner, inputs.plan
        slots = runner.slots(self._pages.index_select(0, rows), plan.ends, plan.visible)  # [R, K]
        written = slots.gather(1, inputs.positions.clamp(max=plan.visible - 1))
        for layer in runner.cache.layers:
            layer.written = written.where(inputs.is_real & (written != runner.empty_slot), runner.spill_slot).flatten()
        count, queries = inputs.tokens.shape
        first = torch.arange(count, device=rows.device)[:, None] * queries
        with self._attention(inputs, slots) as mask, block_only(self._model, inputs.in_block, is_fixed=True):
            logits = logits_at(
                self._model,
                (inputs.outputs + first).flatten(),
                input_ids=inputs.tokens,
                position_ids=inputs.positions,
                attention_mask=mask,
                cache=runner.cache,
                filled=runner.attention.filled,
            )
        return logits.float().view(count, -1, logits.shape[-1])

    @contextmanager
    def _attention(self, inputs: ModelInput, slots: Tensor) -> Iterator[AttentionMask]:
        """While active, make the model's layers attend to the keys in `slots` [R, K]. Yield their `attention_mask`."""
        (rows, queries), attention = inputs.tokens.shape, self._runner.attention

        def realise(window: int | None) -> Any:
            mask_mod = decode_mask(position_ids=inputs.positions, limits=inputs.limits, window=window)
            mask = self._form.realised(mask_mod, batch=rows, queries=queries, keys=slots.shape[1])
            return attention.mask(mask, queries=queries) if self._name == attention.name else mask

        reset = _LAYOUT.set(_Layout(slots, self._name))
        try:
            mask = by_layer_type(self._form.windows, realise)
            with attention_by(_NAME, attention.config):
                yield mask
        finally:
            _LAYOUT.reset(reset)


@dataclass(frozen=True)
class _Layout:
    slots: Tensor
    name: str  # Transformers' name of the function that attends


_LAYOUT: ContextVar[_Layout] = ContextVar("static layout")
_NAME = f"{OURS}static"


def _attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor, **kwargs: Any
) -> tuple[Tensor, None]:
    """Compute attention by Transformers' interface: query [R, H, Q, D], and the whole cache as key and value
    [1, H', slots, D]. Return [R, Q, H, D]."""
    layout = _LAYOUT.get()
    eager = getattr(sys.modules[type(module).__module__], "eager_attention_forward", None)  # each model has its own
    base = ALL_ATTENTION_FUNCTIONS.get_interface(layout.name, eager)
    rows, count = layout.slots.shape
    keys, values = (
        each[0].transpose(0, 1).index_select(0, layout.slots.flatten()).view(rows, count, *each.shape[1::2])
        for each in (key, value)
    )
    result: tuple[Tensor, None] = base(
        module, query, keys.transpose(1, 2), values.transpose(1, 2), attention_mask, **kwargs
    )
    return result


AttentionInterface.register(_NAME, _attend)
