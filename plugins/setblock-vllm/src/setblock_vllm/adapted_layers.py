"""An adapter on the future block in vLLM's layers: LoRA, and the trained row of the mask token, for a block's tokens alone. All
other rows of a pass are exactly the base model's.

vLLM's own LoRA gives all tokens of a request one adapter. This one adds its update where a layer has computed its product,
before a sum over processes, so it is split as the layer's weights are. Shapes: r rank, R the ranks of all parts of a layer.

    qkv_proj, gate_up_proj    a process has some of the outputs of each part: all of A, and these columns of the transposed B
    o_proj, down_proj         a process has some of the inputs: these columns of A, and all of B

The tokens of a pass are marked in a buffer that stays at one address, for compiled code and CUDA graphs.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from setblock.errors import SetBlockError
from setblock.model.adapter.files import lora_weights
from setblock_vllm import vllm_api
from setblock_vllm.slot_pass import SlotPass


class Adapter:
    """The adapter of a model in one process, and the tokens of the next pass on which it acts."""

    def __init__(
        self,
        model: nn.Module,
        config: Mapping[str, Any],
        weights: Mapping[str, Tensor],
        *,
        max_num_tokens: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        """Put an adapter, as returned by `read_lora`, into a model whose weights are loaded. Raise `SetBlockError` if the model
        lacks one of its layers, or a layer can't act on some tokens only."""
        self._numbers = torch.arange(max_num_tokens, dtype=torch.int32, device=device)
        self._left_out = torch.ones(max_num_tokens, dtype=torch.bool, device=device)
        # Whether the next pass may have such a token, as far as the host knows. At first, so that vLLM measures its memory
        self.is_open = True
        lora, modules = lora_weights(config, weights, dtype=dtype), dict(model.named_modules())
        for name, parts in _by_layer(lora.factors, model).items():
            layer: Any = modules.get(name)
            inner, outer = split(layer, name, parts)
            layer.register_buffer("sbd_inner", inner.to(device), persistent=False)
            layer.register_buffer("sbd_outer", outer.to(device), persistent=False)
            layer.register_buffer("sbd_left_out", self._left_out, persistent=False)
            layer.quant_method = AdaptedMethod(self, layer.quant_method)
        for name, (token, row) in lora.rows.items():
            embedding = modules.get(name)
            if embedding is None:
                raise SetBlockError(f"the adapter is for another model: it has a row of {name}, which the model lacks")
            embedding.register_buffer("sbd_row", row.to(device, dtype), persistent=False)
            embedding.register_buffer("sbd_left_out", self._left_out, persistent=False)
            embedding.register_forward_hook(partial(self._with_row, token))

    @property
    def acts(self) -> bool:
        """Whether layers compute the update. Compiled code always does: the next pass may have such tokens."""
        return torch.compiler.is_compiling() or self.is_open

    def mark(self, input_batch: Any, prepared: SlotPass | None, *, for_capture: bool) -> None:
        """Act on the tokens of a pass that are part of a block. Waits for nothing. Without `prepared` the batch was made up, to
        measure or to capture."""
        self.is_open = for_capture or bool(input_batch.num_draft_tokens)
        if prepared is None or not self.is_open:
            return
        count, num_reqs = input_batch.num_tokens_after_padding, input_batch.num_reqs
        ends = input_batch.query_start_loc[1 : num_reqs + 1]
        of_request = torch.searchsorted(ends, self._numbers[:count], right=True).clamp_(max=num_reqs - 1)
        # Padding behind a block counts as its tokens: nobody reads what is computed for it
        block_starts = (prepared.start + prepared.causal)[of_request]
        torch.lt(input_batch.positions[:count], block_starts, out=self._left_out[:count])

    def _with_row(self, token: int, embedding: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor | None:
        if not self.acts:
            return None
        ids = args[0]
        is_mask = (ids == token) & ~embedding.sbd_left_out[: ids.shape[0]]
        return torch.where(is_mask[:, None], embedding.sbd_row, output)


class AdaptedMethod(vllm_api.LinearMethodBase):
    """A layer's product by its own method, whatever its weights' type, plus the adapter's update."""

    def __init__(self, adapter: Adapter, base: Any) -> None:
        self.adapter, self.base = adapter, base

    def create_weights(self, layer: nn.Module, *args: Any, **named: Any) -> None:
        """Create the layer's own weights."""
        self.base.create_weights(layer, *args, **named)

    def process_weights_after_loading(self, layer: nn.Module) -> None:
        """Process the layer's own weights."""
        self.base.process_weights_after_loading(layer)

    def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Map [N, in_features] to [N, out_features], of this process's part of the layer."""
        output: Tensor = self.base.apply(layer, x, bias)
        if self.adapter.acts:
            inside = linear(x, layer.sbd_inner)
            # Not a product: NaN times 0 is NaN
            inside = inside.masked_fill(layer.sbd_left_out[: x.shape[0], None], 0)
            output.addmm_(inside, layer.sbd_outer)
        return output


def _by_layer(factors: Mapping[str, tuple[Tensor, Tensor]], model: Any) -> dict[str, dict[int, tuple[Tensor, Tensor]]]:
    """Return the factors by vLLM's layers, of which some merge several of Transformers'; of each layer by the part's number."""
    merged = {
        part: (whole, number)
        for whole, parts in model.packed_modules_mapping.items()
        for number, part in enumerate(parts)
    }
    layers: dict[str, dict[int, tuple[Tensor, Tensor]]] = {}
    for name, each in factors.items():
        parent, _, own = name.rpartition(".")
        whole, number = merged.get(own, (own, 0))
        layers.setdefault(f"{parent}.{whole}", {})[number] = each
    return layers


def split(layer: Any, name: str, parts: Mapping[int, tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    """Return this process's part of an adapter of one layer: A [R, inputs] and the transposed B [R, outputs], with zeros where
    a part of the layer does not see another's rank: reading zeros costs less than more products. Raise `SetBlockError` if the
    layer has other sizes or is of a kind that sees a part of the tokens.

    Args:
        layer: the layer, or None if the model has none of this name.
        name: of the layer, for messages.
        parts: of each part of the layer that the adapter updates, A [r, in_features] and the transposed B [r, out_features].
    """
    if layer is None:
        raise SetBlockError(f"the adapter is for another model: it updates {name}, which vLLM's model lacks")
    if not isinstance(layer, vllm_api.LinearBase):
        raise SetBlockError(
            f"the adapter updates {name}, a {type(layer).__name__}, which sees a part of the tokens only"
        )
    sizes = list(layer.output_partition_sizes)  # of each part, in this process
    numbers = sorted(parts)
    inners = [parts[number][0] for number in numbers]
    outer = inners[0].new_zeros((sum(len(each) for each in inners), sum(sizes)))
    by_inputs = isinstance(layer, vllm_api.RowParallelLinear)
    first = 0
    for number in numbers:
        inner, of_part = parts[number]
        place, count = (0, 1) if by_inputs else _place(layer, number)
        expected = (layer.input_size, sizes[number] * count if number < len(sizes) else 0)
        if (inner.shape[1], of_part.shape[1]) != expected:
            raise SetBlockError(
                f"the adapter is for another model: {name} maps {expected[0]} to {expected[1]} in part {number}, and the "
                f"adapter {inner.shape[1]} to {of_part.shape[1]}"
            )
        column, size = sum(sizes[:number]), sizes[number]
        outer[first : first + len(inner), column : column + size] = of_part[:, place * size : (place + 1) * size]
        first += len(inner)
    inner = torch.cat(inners)
    if by_inputs:
        size = layer.input_size // layer.tp_size
        inner = inner[:, layer.tp_rank * size : (layer.tp_rank + 1) * size].contiguous()
    return inner, outer


def _place(layer: Any, number: int) -> tuple[int, int]:
    """Return which of how many shares of a part's outputs this process has. Processes may share heads of keys and values."""
    if isinstance(layer, vllm_api.ReplicatedLinear):
        return 0, 1
    shared = layer.num_kv_head_replicas if number and isinstance(layer, vllm_api.QKVParallelLinear) else 1
    return layer.tp_rank // shared, layer.tp_size // shared
