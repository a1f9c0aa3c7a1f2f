"""Forward passes of a Hugging Face causal LM: a single pass with logits only where they are wanted (`logits_at`), and those of
rows with a page each (`PaddedRunner`).

The cache has one slot for each position of each row. The commit pass overwrites a block's noisy entries by the exact ones.
"""

import inspect
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from functools import cache
from threading import Lock
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention.flex_attention import BlockMask
from transformers import PreTrainedModel
from transformers.cache_utils import Cache, CacheLayerMixin

from setblock import devices
from setblock.locks import one_at_a_time
from setblock.masks import AttentionMask, by_layer_type, decode_mask
from setblock.model.adapter.adapter import block_only, gate_of
from setblock.model.attention.attention import mask_form
from setblock.model.attention.grouped import GroupedAttention
from setblock.model.protocol.runtime import ModelInput, PassLayout, Runner
from setblock.model.weights import make_batch_invariant

_FEW, _FULL = 6, 16
"""Output counts between these two are padded to the second: on CPUs a float32 product of 7 to 15 rows takes MKL up to twice the
time of one of 16. Elsewhere (bfloat16, prepacked weights, GPUs) a few more rows cost nothing."""

Take = Callable[[Tensor], Tensor]
"""Receives hidden states [M, D] on their way into the LM head, and returns those that the head gets."""


class SelectOutputs:
    """A hook on the LM head, which then sees only the hidden states at `index` [M] of the flattened [B * T] sequence: the
    logits are [1, M, V]. Without an index it changes nothing. With `take`, the head sees what `take` returns for them.

    It is a hook, not a separate matrix product, so that whatever the model does after its head (soft-capping, scaling) still
    happens.
    """

    index: Tensor | None = None
    take: Take | None = None

    def __call__(self, module: nn.Module, args: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """Return the head's arguments. The first, the hidden states [B, T, D], is replaced by those chosen, [1, M, D]."""
        if self.index is None:
            return args
        hidden = args[0]
        chosen = hidden.reshape(-1, hidden.shape[-1])[self.index]  # [M, D]
        return ((chosen if self.take is None else self.take(chosen))[None], *args[1:])


_HOOK = "_setblock_select_outputs"


def _hook_of(model: PreTrainedModel) -> SelectOutputs:
    """Return the hook of a model's head. It is never removed: a new hook would recompile each pass. FSDP2 puts its own hook in
    front, so that the head's weights are present when `take` is called."""
    head = model.get_output_embeddings()
    hook: SelectOutputs | None = getattr(head, _HOOK, None)
    if hook is None:
        hook = SelectOutputs()
        head.register_forward_pre_hook(hook)
        setattr(head, _HOOK, hook)
    return hook


@one_at_a_time()
def logits_at(
    model: PreTrainedModel,
    index: Tensor,
    *,
    input_ids: Tensor,
    cache: Cache | None = None,
    wrapped: Callable[..., Any] | None = None,
    filled: Callable[[int], int] = int,
    take: Take | None = None,
    **more: Any,
) -> Tensor:
    """Run the model once and return the logits [M, V] at `index` [M] of the flattened [B * T] inputs.

    Args:
        model: the model itself.
        input_ids: [B, T].
        cache: the cache that the pass reads and writes; None for a pass without a cache.
        wrapped: called in place of the model, if a trainer has wrapped it or it was compiled.
        filled: maps the number of wanted outputs, one or more, to the number that the head computes. The last output is
            repeated where a head is slow, or gives other bits, for few outputs.
        take: receives the hidden states at `index`; the logits are those of the states that it returns.
        more: further arguments of the model: position_ids [B, T], and attention_mask from `setblock.masks.MaskForm.mask`. It is
            None for no mask: the attention must then be this package's, since Transformers makes a mask for its own. The
            attention function receives those that the model does not use.
    """
    wanted = len(index)
    if take is None:
        given = _FULL if _FEW < wanted < _FULL else filled(wanted)
        index = torch.cat([index, index[-1:].expand(given - wanted)]) if given > wanted else index
    cache_name = _cache_name(type(model))  # type: ignore[arg-type]  # a class is hashable
    if cache_name == "cache_params":  # a model without attention takes no positions
        more.pop("position_ids", None)
    hook = _hook_of(model)
    hook.index, hook.take = index, take
    try:
        with nullcontext() if cache is None else _WITHOUT_CUDNN:
            output = (model if wrapped is None else wrapped)(
                input_ids=input_ids,
                use_cache=cache is not None,
                **{cache_name: cache},
                **more,
            )
    finally:
        hook.index = hook.take = None
    logits: Tensor = output.logits[0]
    return logits[:wanted]


@cache
def _cache_name(kind: type[PreTrainedModel]) -> str:
    """Return the name of a model's argument for its cache."""
    names = inspect.signature(kind.forward).parameters
    return "cache_params" if "cache_params" in names else "past_key_values"


class _WithoutCudnn:
    """A context that switches cuDNN's attention off as long as any thread is inside: the switch is global to a process. cuDNN
    takes a tenth of a second to prepare for a shape, and each pass with a cache has a new number of keys."""

    def __init__(self) -> None:
        self._lock, self._inside, self._was_on = Lock(), 0, False

    def __enter__(self) -> None:
        with self._lock:
            if not self._inside:
                self._was_on = torch.backends.cuda.cudnn_sdp_enabled()  # type: ignore[no-untyped-call]  # has no types
                torch.backends.cuda.enable_cudnn_sdp(False)
            self._inside += 1

    def __exit__(self, *error: object) -> None:
        with self._lock:
            self._inside -= 1
            if not self._inside:
                torch.backends.cuda.enable_cudnn_sdp(self._was_on)


_WITHOUT_CUDNN = _WithoutCudnn()


class PaddedRunner(Runner):
    """See `setblock.model.protocol.runtime.Runner`. A row has one page, so that its keys and values are read where they are.
    Passes are padded to their longest row."""

    pads = True
    shares_pages = False
    prompts_apart = True
    runs_ahead = True

    def __init__(self, model: PreTrainedModel, *, rows: int, capacity: int) -> None:
        """Make an empty cache for `rows` rows of at most `capacity` positions. The batch is all of them, until `place` is
        called."""
        self._model = model
        # Reading attributes of a model or its config is slow, so each is read once
        config, device = model.config.get_text_config(), model.device
        self._attention = GroupedAttention(model)
        make_batch_invariant(model)
        capacity = self._attention.whole_chunks(capacity)
        self.cache = SlotCache(layers=config.num_hidden_layers, batch=rows, capacity=capacity, device=device)
        most = max(rows, 2 * capacity)  # a padded pass feeds up to two blocks
        self._form = mask_form(model, most=most, device=device)
        self._blocks = FiniteBlocks(self.cache, device)
        self._has_gate, self._waits = gate_of(model) is not None, devices.waits(device)
        self._pages: slice | Tensor = slice(0, rows)  # of each row of the batch
        self._owners: dict[int, int] = {}  # the last of each page, by the id of its row

    def place(self, pages: Sequence[Sequence[int]], ids: Iterable[int]) -> None:
        """Set the page of each row of the batch. A page that changes its owner is cleared: where a row is shorter than others,
        what follows it in its page is read and masked, and 0 times NaN is NaN."""
        places = [page for (page,) in pages]
        for page, row in zip(places, ids, strict=True):
            if self._owners.get(page, row) != row:
                self.cache.clear(page)
            self._owners[page] = row
        first, count = min(places, default=0), len(places)
        if places == list(range(first, first + count)):
            self._pages = slice(first, first + count)
        else:
            self._pages = torch.tensor(places, device=self._model.device)

    def computed(self, tokens: int) -> int:
        """Return `tokens`, or the least number that a pass computes."""
        return max(tokens, self._attention.filled(1))

    @one_at_a_time(of=lambda runner: runner._model)
    def logits(self, inputs: ModelInput) -> Tensor:
        """Run one pass over [A, Q] tokens (eq. 9)."""
        if (missing := -(-self._attention.filled(1) // len(inputs.tokens)) - inputs.tokens.shape[1]) > 0:
            inputs = inputs.padded(missing)
        return self._blocks.logits(lambda: self._logits(inputs), inputs)

    def _logits(self, inputs: ModelInput) -> Tensor:
        rows, queries = inputs.tokens.shape
        visible = min(self._attention.whole_chunks(inputs.plan.visible), self.cache.capacity)
        everyone = inputs.plan.has_all
        self.cache.write_to(
            rows=self._pages if everyone else self.cache.rows_at(self._pages)[inputs.plan.rows],
            slots=inputs.positions
            if inputs.plan.is_full
            else inputs.positions.where(inputs.is_real, self.cache.capacity),
            visible=visible,
        )
        outputs = inputs.outputs  # [A, m]
        if rows > 1:
            places = inputs.plan.rows if everyone else torch.arange(rows, device=inputs.plan.rows.device)
            outputs = outputs.add(places[:, None], alpha=queries)
        # If the host would wait for the number of wanted outputs, computing all is faster. The head gets at least one.
        takes_all = outputs.numel() == 1 or self._waits
        index = outputs.flatten() if takes_all else outputs[inputs.wanted]
        gate = block_only(self._model, inputs.in_block) if self._has_gate else nullcontext()
        with gate, self._attention.active():
            logits = logits_at(
                self._model,
                index if index.shape[0] else outputs[0, :1],  # some kernels fail on empty input
                input_ids=inputs.tokens,
                position_ids=inputs.positions,
                attention_mask=self._mask(inputs, visible=visible),
                cache=self.cache,
                filled=self._attention.filled,
            )
        logits = logits.float()[: index.shape[0]]
        return logits.view(*outputs.shape, -1) if index.shape[0] == outputs.numel() else logits

    def _mask(self, inputs: ModelInput, *, visible: int) -> AttentionMask | None:
        """Return the mask of a pass; None if each token sees all `visible` positions and the attention takes None for that."""
        if inputs.plan.layout is PassLayout.UNIFORM and not self._attention.needs_masks:
            return None
        (rows, queries), limits = inputs.tokens.shape, inputs.limits

        def realise(window: int | None) -> Tensor | BlockMask:
            mask_mod = decode_mask(position_ids=inputs.positions, limits=limits, window=window)
            mask = self._form.realised(mask_mod, batch=rows, queries=queries, keys=visible)
            return self._attention.mask(mask, queries=queries)

        return by_layer_type(self._form.windows, realise)


class SlotCache(Cache):
    """A preallocated cache [B, H, capacity, D] for each layer. Slot s contains the token at position s."""

    def __init__(self, *, layers: int, batch: int, capacity: int, device: torch.device) -> None:
        # One more slot, where padding is written
        super().__init__(layers=[SlotLayer(batch=batch, slots=capacity + 1) for _ in range(layers)])
        self.batch, self.capacity = batch, capacity
        self._everyone = torch.arange(batch, device=device)

    def clear(self, row: int) -> None:
        """Fill a row with zeros."""
        for layer in self.layers:
            if layer.is_initialized:
                layer.keys[row].zero_()
                layer.values[row].zero_()

    def rows_at(self, where: slice | Tensor) -> Tensor:
        """Return some row numbers [A] int64."""
        return self._everyone[where]

    def write_to(self, *, rows: slice | Tensor, slots: Tensor, visible: int) -> None:
        """Set where the next forward pass writes, and the slots that it reads in every layer.

        Args:
            rows: rows that take part: a slice, which are read without a copy, or [A] int64.
            slots: [A, Q] slot of each token; that of padding is `capacity`, which is never read.
            visible: number of slots of these rows that the pass reads, from the first on.
        """
        written = self.rows_at(rows)[:, None]
        for layer in self.layers:
            layer.rows, layer.written, layer.slots, layer.visible = rows, written, slots, visible


class FiniteBlocks:
    """Keeps NaN and infinity in a block's keys and values from the tokens that must not see them: 0 times NaN is NaN.

    Plain decoding reads no mask token, so that a mask token with such keys must not spoil an exact answer. If the outputs of a
    pass with a block are not all finite, the pass is run again, and from then on such keys and values are replaced by zeros. On
    devices for which the host would have to wait, nothing is checked.
    """

    def __init__(self, cache: Cache, device: torch.device) -> None:
        self._cache, self._looks, self._is_needed = cache, not devices.waits(device), False

    def logits(self, run: Callable[[], Tensor], inputs: ModelInput, in_block: Tensor | None = None) -> Tensor:
        """Return the logits that `run` computes for `inputs`. `in_block` [A, Q] bool marks the tokens of a block as the layers
        see them, if their layout is not that of `inputs`."""
        if not self._looks or not inputs.plan.has_blocks:
            return run()
        if not self._is_needed:
            logits = run()
            if not bool(logits[..., 0].isnan().any()):
                return logits
            self._is_needed = True
        where = (inputs.in_block if in_block is None else in_block)[:, None, :, None]
        for layer in self._cache.layers:
            layer.finite_at = where
        try:
            return run()
        finally:
            for layer in self._cache.layers:
                layer.finite_at = None


class FixedLayer(CacheLayerMixin):
    """One layer [batch, H, slots, D] of a cache that is allocated once. A pass reads the first `visible` slots. The model is
    always given positions, and never derives them from the layer's sizes."""

    is_sliding = False
    written: Tensor  # where the next pass writes, set by the cache
    finite_at: Tensor | None = None  # [A, 1, Q, 1] bool, tokens of the next pass that `FiniteBlocks` makes finite

    def __init__(self, *, batch: int, slots: int, visible: int = 0) -> None:
        super().__init__()
        self.batch, self.capacity, self.visible = batch, slots, visible

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Allocate the slots for states like [..., H, Q, D]."""
        self.keys, self.values = (
            each.new_zeros((self.batch, each.shape[1], self.capacity, each.shape[3]))
            for each in (key_states, value_states)
        )
        self.is_initialized = True

    def finite(self, *states: Tensor) -> tuple[Tensor, ...]:
        """Return keys and values [A, H, Q, D] as they must be written: finite at `finite_at`."""
        if (where := self.finite_at) is None:
            return states
        return tuple(torch.where(where, each.nan_to_num(0.0, 0.0, 0.0), each) for each in states)

    def get_seq_length(self) -> int:
        """Return the number of slots in use."""
        return self.visible

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return the length and offset of the keys that a pass reads."""
        return self.visible, 0

    def get_max_length(self) -> int:
        """Return the number of slots of a row."""
        return self.capacity


class SlotLayer(FixedLayer):
    """One layer of a `SlotCache`."""

    rows: slice | Tensor
    slots: Tensor

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write [A, H, Q, D] states to their slots; return the visible slots [A, H, visible, D] of the same rows."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        key_states, value_states = self.finite(key_states, value_states)
        if self.batch == 1:
            self.keys.index_copy_(2, self.slots[0], key_states)
            self.values.index_copy_(2, self.slots[0], value_states)
        else:
            where = (self.written, slice(None), self.slots)  # addresses [A, Q, H, D]
            self.keys[where] = key_states.transpose(1, 2)
            self.values[where] = value_states.transpose(1, 2)
        return self.keys[:, :, : self.visible][self.rows], self.values[:, :, : self.visible][self.rows]
