"""Passes of fixed sizes over the pages of a `PackedRunner`: R rows of Q tokens each, padding included, and K keys of a row.

Nothing here is read by the host, copied from it, or has a size that depends on values, so that a pass can be captured as one
CUDA graph and replayed. What a pass reads is at fixed addresses: the page table, the cache, and the inputs of its caller.
"""

from collections.abc import Callable, Hashable, Iterator, Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from setblock.devices import sent
from setblock.locks import one_at_a_time
from setblock.model.adapter.adapter import block_only
from setblock.model.attention.attention import layer_windows
from setblock.model.attention.grouped import attention_by
from setblock.model.attention.paged_attention import (
    PAGED,
    GatherAttention,
    Kind,
    PagedInput,
    paged_arguments,
    paged_attention,
)
from setblock.model.protocol.runtime import ModelInput, StaticRunner, fixed_capacity
from setblock.model.runners.forward import logits_at
from setblock.model.runners.packed_runner import PackedRunner

NO_PAGE = -1
"""In a page table: positions for which a row has no page."""


class StaticPasses(StaticRunner):
    """See `setblock.model.protocol.runtime.StaticRunner`."""

    def __init__(
        self,
        runner: PackedRunner,
        *,
        rows: int,
        positions: int,
        kind: Kind | None = None,
        compiled: Callable[..., Any] | None = None,
    ) -> None:
        """Make the page table of `rows` rows of up to `positions` positions each.

        Args:
            runner: whose cache and pages they use.
            rows: of the table.
            positions: the most of a row.
            kind: as in `paged_attention`.
            compiled: called in place of the model.
        """
        self._runner, self._model, self._compiled = runner, runner.model, compiled
        self._most_keys = fixed_capacity(positions)
        pages = -(-self._most_keys // runner.page_tokens)
        self._pages = torch.full((rows, pages), NO_PAGE, device=self._model.device)
        self._placed: dict[int, list[int]] = {}  # what `_pages` says of each row
        config, device = runner.attention.config, self._model.device
        if kind is None and device.type == "cuda":  # FlexAttention's blocks of keys are large
            kind = "flex" if runner.page_tokens % 128 == 0 else "triton"
        self._attention = paged_attention(device, of_group=runner.attention.of_group, kind=kind)
        self._windows = layer_windows(config)

    def keys_for(self, positions: int) -> int:
        """Return K, the keys of each row in a pass whose rows end at `positions` at the latest."""
        if not isinstance(self._attention, GatherAttention):  # reads only what a row sees
            return self._most_keys
        return min(self._most_keys, fixed_capacity(positions))

    def place(self, rows: Sequence[int], pages: Sequence[Sequence[int]]) -> None:
        """Write the pages of rows of the table, from the first position on, as far as they have changed."""
        changed = [(row, list(each)) for row, each in zip(rows, pages, strict=True) if self._placed.get(row) != each]
        if not changed:
            return
        width = max(max(len(each), len(self._placed.get(row, ()))) for row, each in changed)
        table = sent([[*each, *[NO_PAGE] * (width - len(each))] for _, each in changed], self._pages.device)
        at = sent([row for row, _ in changed], self._pages.device)
        self._pages[:, :width].index_copy_(0, at, table)
        self._placed.update(changed)

    def clear(self, pages: Sequence[int]) -> None:
        """Fill pages with zeros, where the attention reads what a page held before: 0 times NaN is NaN."""
        if not self._attention.needs_finite_pages:
            return
        tokens = self._runner.page_tokens
        for layer in self._runner.cache.layers:
            for page in pages:
                layer.keys[page * tokens : (page + 1) * tokens].zero_()
                layer.values[page * tokens : (page + 1) * tokens].zero_()

    @one_at_a_time(of=lambda passes: passes._model)
    def logits(self, inputs: ModelInput, *, rows: Tensor) -> Tensor:
        """Run one pass over [R, Q] tokens and return the logits of all outputs, [R, m, V] float32.

        Args:
            inputs: with all its rows taking part, and K as `visible`.
            rows: [R] int64, their rows of the table.
        """
        runner, plan, tokens = self._runner, inputs.plan, self._runner.page_tokens
        table = self._pages.index_select(0, rows)[:, : -(-plan.visible // tokens)]
        given = PagedInput(
            page_table=table.clamp(min=0),
            positions=inputs.positions,
            limits=inputs.limits.where(inputs.is_real, 0),
            pages=runner.pages,
            page_tokens=tokens,
        )
        pages = table.gather(1, inputs.positions // tokens)
        slots = pages * tokens + inputs.positions % tokens
        for layer in runner.cache.layers:
            layer.written = slots.where(inputs.is_real & (pages != NO_PAGE), runner.spill_slot).flatten()
            layer.page_tokens = tokens
        count, queries = inputs.tokens.shape
        first = torch.arange(count, device=rows.device)[:, None] * queries
        try:
            arguments: dict[str, Any] = paged_arguments(self._attention, given, self._windows)
            with (
                attention_by(PAGED, runner.attention.config),
                block_only(self._model, inputs.in_block, is_fixed=True),
            ):
                logits = logits_at(
                    self._model,
                    (inputs.outputs + first).flatten(),
                    input_ids=inputs.tokens,
                    position_ids=inputs.positions,
                    cache=runner.cache,
                    wrapped=self._compiled,
                    filled=runner.attention.filled,
                    **arguments,
                )
        finally:
            for layer in runner.cache.layers:
                layer.page_tokens = None
        return logits.float().view(count, -1, logits.shape[-1])


_SWITCHES = ("training", "_disable_adapters", "_active_adapter", "merged_adapters")
"""Attributes of modules that decide which operations they run. All but the first are PEFT's."""


def state_of(model: nn.Module) -> Hashable:
    """Return what of a model a captured pass depends on: where its weights are, and which of its operations run."""
    weights = chain.from_iterable(map(_parts, chain(model.parameters(), model.buffers())))
    switches = [tuple(str(vars(module).get(name)) for name in _SWITCHES) for module in model.modules()]
    return (*((each.data_ptr(), each.dtype, each.shape) for each in weights), *switches)


def _parts(weight: Tensor) -> Iterator[Tensor]:
    """Yield the tensors that hold a weight, which are several if it is quantised."""
    if is_traceable_wrapper_subclass(weight):
        for name in weight.__tensor_flatten__()[0]:
            yield from _parts(getattr(weight, name))
    else:
        yield weight
