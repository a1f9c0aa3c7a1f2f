"""The runner of models with a recurrent state (state-space layers, linear attention, convolutions), by Transformers' own cache.

A state can't be cut back as keys can, but it can be kept: of each row, the cache holds the state at its *settled* position, and
the keys and values up to there. A pass begins at that position:

    0 ........ settled ........ start ........ block_start ........ end
      in the cache      fed again      fed causally        block

The tokens up to `start` are known, and fed again. If the row continues at `end`, the state after the pass becomes the settled
one. If not, it is dropped: so nothing of a rejected draft, a mask token or padding is left. Blocks are causal.

All rows of one call of the model have the same number of tokens. Rows with fewer are padded behind their end, where causal
tokens don't see it, and don't keep the state after the pass. Prompts, and rows that must keep it, are called with others of
their length.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import PretrainedConfig, PreTrainedModel, cache_utils
from transformers.cache_utils import (
    DYNAMIC_LAYER_TYPE_MAPPING,
    Cache,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    get_layer_types_and_kwargs,
)

from setblock import devices
from setblock.locks import one_at_a_time
from setblock.masks import AttentionMask, MaskForm, MaskMod, by_layer_type
from setblock.model.adapter.adapter import block_only
from setblock.model.attention.attention import FULL
from setblock.model.protocol.runtime import ModelInput, RowSchedule, Runner
from setblock.model.runners.forward import logits_at

MOST_REFED = 24
"""Known tokens that are fed again without loss on most devices. With more, a row that is fed no block keeps its state."""

_LAYERS: dict[type, type] = {
    DynamicLayer: DynamicLayer,
    # Sliding windows are in the masks: a window of keys can't be cut back
    DynamicSlidingWindowLayer: DynamicLayer,
    LinearAttentionLayer: LinearAttentionLayer,
    LinearAttentionAndFullAttentionLayer: LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer: LinearAttentionAndFullAttentionLayer,
}
"""The cache layers that can be put back, by Transformers' usual ones."""
if (dummy := getattr(cache_utils, "DummyLayer", None)) is not None:  # Transformers 5.19 has none
    _LAYERS[dummy] = dummy


class StateCaches:
    """Makes Transformers' caches for a model whose layers keep a state. Raises `ValueError` for layers of other kinds."""

    def __init__(self, config: PretrainedConfig) -> None:
        config = config.get_text_config()
        types, arguments = get_layer_types_and_kwargs(config)
        # The sliding window of each type of layer with keys, None for full attention
        self.windows: dict[str, int | None] = {}
        self._makers: list[tuple[type, dict[str, Any]]] = []
        for name, given in zip(types, arguments, strict=True):
            usual = DYNAMIC_LAYER_TYPE_MAPPING.get(name)
            if usual not in _LAYERS:
                raise ValueError(f"its cache has layers of type {name!r}, which can't be put back")
            if issubclass(usual, DynamicLayer):
                self.windows[name] = given.get("sliding_window")
            kept = {key: value for key, value in given.items() if key != "sliding_window"}
            self._makers.append((_LAYERS[usual], kept))

    def empty(self) -> Cache:
        """Return an empty cache."""
        return Cache(layers=[kind(**arguments) for kind, arguments in self._makers])


@dataclass(eq=False)
class StateRow:
    """What the cache holds of a row. Two places of the states' table are its own."""

    place: int  # of the state at `settled`
    spare: int  # of the state after the last pass
    tail: Tensor  # int64, the tokens from `settled` on, as the last pass fed them
    settled: int = 0
    after: int = -1  # the position of the state after the last pass; -1 if there is none to keep

    def go_to(self, start: int) -> None:
        """Put the row back to `start`, where its next pass begins, or keep the state after the last one."""
        if start == self.after:
            self.place, self.spare, self.settled = self.spare, self.place, start
        elif start < self.settled:
            assert start == 0, "a row goes back behind its settled position"
            self.settled = 0
        self.tail, self.after = self.tail[: start - self.settled], -1

    def refed(self, start: int) -> int:
        """Return how many tokens before `start` are fed again."""
        return 0 if start in (0, self.after) else start - self.settled


class StateRunner(Runner):
    """See `setblock.model.protocol.runtime.Runner`. Rows share no pages: a page has no states."""

    pads = True
    shares_pages = False
    most_refed = MOST_REFED

    def __init__(
        self, model: PreTrainedModel, *, pages: int, page_tokens: int, rows: int, together: bool = True
    ) -> None:
        """Make an empty cache for at most `rows` rows. `together`: whether the model is called for several rows at once."""
        self._model, self._together, self.page_tokens = model, together, page_tokens
        self._caches = StateCaches(model.config)
        # Two more slots. One stays zero, and is read behind a row's keys. The other is written for padding, and never read
        self._empty_slot, self._spill_slot = pages * page_tokens, pages * page_tokens + 1
        self._keys: dict[tuple[int, str], Tensor] = {}  # [slots + 2, H, D] by layer, and `keys` or `values`
        # [1 + 2 rows, ...] by layer, name and number. The first is the state before any token, the others are rows' own
        self._states: dict[tuple[int, str, int], Tensor] = {}
        self._places = 1 + 2 * rows
        self._free = list(range(1, self._places))
        self._rows: dict[int, StateRow] = {}
        self._ids: list[int] = []
        self._pages = torch.zeros((0, 0), dtype=torch.long)

    def place(self, pages: Sequence[Sequence[int]], ids: Iterable[int]) -> None:
        """Set the pages of each row of the batch, from the first position on. The states of all other rows are dropped."""
        self._ids = list(ids)
        for gone in self._rows.keys() - set(self._ids):
            row = self._rows.pop(gone)
            self._free += [row.place, row.spare]
        none = torch.zeros(0, dtype=torch.long, device=self._model.device)
        for each in self._ids:
            if each not in self._rows:
                self._rows[each] = StateRow(self._free.pop(), self._free.pop(), none)
        most = max(map(len, pages), default=0)
        self._pages = torch.tensor([[*each, *[0] * (most - len(each))] for each in pages], device=self._model.device)

    def refed(self, row: int, start: int) -> int:
        """Return how many known tokens before `start` the next pass feeds a row of the batch again."""
        return self._rows[self._ids[row]].refed(start)

    @one_at_a_time(of=lambda runner: runner._model)
    def logits(self, inputs: ModelInput) -> Tensor:
        """Run one pass: a call of the model for each length of the rows that can't be padded, and one for the others."""
        assert inputs.plan.schedules is not None
        schedules = inputs.plan.schedules
        rows = [self._rows[self._ids[row]] for row in inputs.plan.rows.tolist()]
        for row, scheduled in zip(rows, schedules, strict=True):
            row.go_to(scheduled.start)
        counts = [scheduled.end - row.settled for row, scheduled in zip(rows, schedules, strict=True)]
        if self._together:
            is_exact = [_must_keep(row, each) for row, each in zip(rows, schedules, strict=True)]
            widest = max((count for count, exact in zip(counts, is_exact, strict=True) if not exact), default=0)
            groups: dict[int, list[int]] = {}
            for index, (count, exact) in enumerate(zip(counts, is_exact, strict=True)):
                groups.setdefault(count if exact else widest, []).append(index)
            calls = list(groups.items())
        else:
            calls = [(count, [index]) for index, count in enumerate(counts)]
        number = inputs.wanted.flatten().cumsum(dim=0).view(inputs.wanted.shape) - 1  # [A, m], of each wanted output
        parts = [self._call(inputs, rows, group, width) for width, group in calls]
        if len(parts) == 1:
            return parts[0]
        where = torch.cat([number[group][inputs.wanted[group]] for _, group in calls])
        return torch.cat(parts)[where.argsort()]

    def _call(self, inputs: ModelInput, rows: Sequence[StateRow], group: Sequence[int], width: int) -> Tensor:
        """Call the model for the rows of a group, `width` tokens each. Return the logits [M, V] of their wanted outputs."""
        assert inputs.plan.schedules is not None
        device, here, everyone = self._model.device, [rows[index] for index in group], inputs.plan.rows
        schedules = [inputs.plan.schedules[index] for index in group]
        # 1. The tokens: those that are fed again, the pass's own, and padding
        tokens = torch.zeros((len(group), width), dtype=torch.long, device=device)
        for place, (index, row, scheduled) in enumerate(zip(group, here, schedules, strict=True)):
            row.tail = torch.cat([row.tail, inputs.tokens[index, : scheduled.tokens]])
            tokens[place] = pad(row.tail, (0, width - len(row.tail)))
        numbers = [[row.settled, each.start, each.end] for row, each in zip(here, schedules, strict=True)]
        settled, start, end = torch.tensor(numbers, device=device).T[..., None]  # [a, 1] each
        positions = settled + torch.arange(width, device=device)  # [a, W]
        is_real = positions < end
        positions = positions.minimum(end - 1)
        of_group = torch.tensor(list(group), device=device)
        in_block = is_real & (positions >= inputs.block_start[of_group, None])

        # 2. Forward; the head sees the wanted outputs, at least one
        outputs = inputs.outputs[of_group] + (start - settled)  # [a, m]
        outputs = outputs + width * torch.arange(len(group), device=device)[:, None]
        index = outputs[inputs.wanted[of_group]]
        read = index if len(index) else outputs[0, :1].clamp(max=width - 1)

        def run(token_ids: Tensor) -> tuple[Cache, Tensor]:
            cache, past = self._loaded(everyone[of_group], here)
            mask = self._mask(positions, settled, past) if self._together else None
            where: dict[str, Any] = {"position_ids": positions, "attention_mask": mask, "cache": cache}
            with block_only(self._model, in_block):
                return cache, logits_at(self._model, read, input_ids=token_ids, **where)

        cache, logits = run(tokens)
        # A block that is no numbers reaches tokens that must not see it, since 0 times NaN is NaN: these are run without it
        if not devices.waits(device) and bool(in_block.any() & logits[:, 0].isnan().any()):
            cache, without = run(tokens.masked_fill(in_block, 0))
            logits = torch.where(in_block.flatten()[read, None], logits, without)

        # 3. Keep the keys of all tokens, and the states of rows without a block or padding
        for row, scheduled in zip(here, schedules, strict=True):
            if len(row.tail) == width and not scheduled.in_block:
                row.after = scheduled.end
        self._store(cache, here, everyone[of_group], positions, is_real)
        return logits.float()[: len(index)]

    def _mask(self, positions: Tensor, settled: Tensor, past: int) -> AttentionMask:
        """Return the causal mask [a, 1, W, past + W] of tokens at `positions` [a, W] behind `settled` [a, 1] keys of each."""
        width = positions.shape[1]
        old = torch.arange(past, device=positions.device).expand(len(positions), -1)
        held = torch.cat([old, positions], dim=1)  # the position of each key

        def mask_mod_for(window: int | None) -> MaskMod:
            def mask_mod(b: Tensor, h: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
                seen = torch.where(kv_idx < past, kv_idx < settled[b, 0], kv_idx - past <= q_idx)
                return seen if window is None else seen & (positions[b, q_idx] - held[b, kv_idx] < window)

            return mask_mod

        most = max(len(positions), past + width)
        index = torch.arange(most, device=positions.device)
        windows = self._caches.windows
        if len({*windows.values()}) < 2:  # one mask for all layers; also without any that read it
            windows = {FULL: next(iter(windows.values()), None)}
        implementation = str(self._model.config.get_text_config()._attn_implementation)
        form = MaskForm(windows, implementation, self._model.dtype, index)
        sizes = {"batch": len(positions), "queries": width, "keys": past + width}
        return by_layer_type(windows, lambda window: form.realised(mask_mod_for(window), **sizes))

    def _loaded(self, numbers: Tensor, rows: Sequence[StateRow]) -> tuple[Cache, int]:
        """Return a cache with the settled keys and states of rows of the batch, and the number of keys; [a] `numbers`."""
        cache, device = self._caches.empty(), numbers.device
        past = max(row.settled for row in rows)
        if past and self._keys:
            held = torch.tensor([row.settled for row in rows], device=device)[:, None]
            positions = torch.arange(past, device=device).expand(len(rows), -1)
            slots = torch.where(positions < held, self._slots(numbers, positions), self._empty_slot)  # [a, past]
            for number, layer in enumerate(cache.layers):
                if (number, "keys") in self._keys:
                    keys, values = (self._keys[number, name][slots].transpose(1, 2) for name in ("keys", "values"))
                    DynamicLayer.lazy_initialization(layer, keys, values)
                    layer.keys, layer.values = keys, values  # [a, H, past, D]
        places = torch.tensor([row.place if row.settled else 0 for row in rows], device=device)
        for (number, name, of_layer), table in self._states.items():
            layer, state = cache.layers[number], table[places]
            getattr(layer, name)[of_layer] = state
            getattr(layer, f"is_{name}_initialized")[of_layer] = layer.has_previous_state[of_layer] = True
            layer.device, layer.dtype = state.device, state.dtype
            if name == "conv_states":
                layer.conv_kernel_size[of_layer] = state.shape[-1]
        return cache, past

    def _store(
        self, cache: Cache, rows: Sequence[StateRow], numbers: Tensor, positions: Tensor, is_real: Tensor
    ) -> None:
        """Write the keys and values of the tokens of a call, and the states after it."""
        width = positions.shape[1]
        slots = torch.where(is_real, self._slots(numbers, positions), self._spill_slot)  # [a, W]
        kept = [place for place, row in enumerate(rows) if row.after >= 0]
        places = torch.tensor([rows[place].spare for place in kept], device=numbers.device, dtype=torch.long)
        for number, layer in enumerate(cache.layers):
            if getattr(layer, "keys", None) is not None:
                for name in ("keys", "values"):
                    new = getattr(layer, name)[:, :, -width:].transpose(1, 2)  # [a, W, H, D]
                    if (number, name) not in self._keys:
                        self._keys[number, name] = new.new_zeros((self._spill_slot + 1, *new.shape[2:]))
                    self._keys[number, name][slots] = new
            for name in ("conv_states", "recurrent_states"):
                for of_layer, state in getattr(layer, name, {}).items():
                    if state is None:
                        continue
                    key = number, name, of_layer
                    if key not in self._states:
                        self._states[key] = state.new_zeros((self._places, *state.shape[1:]))
                    self._states[key][places] = state[kept]

    def _slots(self, numbers: Tensor, positions: Tensor) -> Tensor:
        """Return the slot of each of the `positions` [a, n] of rows of the batch, [a, n]."""
        last = self._pages.shape[1] - 1
        pages = self._pages[numbers].gather(1, (positions // self.page_tokens).clamp(max=last))
        return pages * self.page_tokens + positions % self.page_tokens


def _must_keep(row: StateRow, scheduled: RowSchedule) -> bool:
    """Return whether a row's state after a pass must be kept, so that the row can't be padded."""
    if scheduled.is_prefill:
        return True
    return not scheduled.in_block and scheduled.start - row.settled >= MOST_REFED
