"""An adapter that acts on the future block only, so that next-token decoding is exactly the base model's.

LoRA adds `B A x` to the output of a linear layer. Here it does so for some of the tokens only (`Gate`): those of the noisy half
in training, those of the future block in decoding. All others, and the whole key-value cache, are the base model's. This module
has the forward and backward passes of PEFT's LoRA layers; `setblock.model.adapter.adapted` runs an adapter in decoding.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from setblock.errors import SetBlockError

ADAPTER_FOLDER = "sbd_adapter"
"""The folder of a checkpoint's adapter. Transformers looks for one next to the weights, and so loads the base model alone."""

_GATE = "_setblock_gate"


class Gate:
    """The tokens of a pass on which a model's adapter acts; initially none."""

    def __init__(self, model: nn.Module) -> None:
        self.set(None)
        setattr(model, _GATE, self)

    def set(self, tokens: Tensor | None, *, by_rows: bool = False) -> None:
        """Let the adapter act where `tokens` [B, T] is True in the next passes, or nowhere for None. This holds until the next
        call, since with activation checkpointing the backward pass reruns layers. With `by_rows`, and `tokens` on a CPU, those
        before the first and after the last True one cost nothing, if any is True."""
        self.is_open, self._rows = tokens is not None, slice(0, None)
        self._left_out = None if tokens is None else ~tokens.flatten()  # of `_rows`, [N] bool, or None for none
        self._tokens = None if tokens is None else tokens.numel()
        if tokens is not None and by_rows:
            places = tokens.flatten().nonzero()
            self._rows = slice(int(places[0]), int(places[-1]) + 1)
            has_gaps = len(places) < self._rows.stop - self._rows.start
            self._left_out = ~tokens.flatten()[self._rows] if has_gaps else None

    def open(self) -> None:
        """Let the adapter act on all tokens of the next passes, until the next call of `set`."""
        self.set(None)
        self.is_open = True

    def rows(self, tokens: Tensor) -> Tensor:
        """Return the rows [n, D] of `tokens` [..., D] on which the adapter may act; `gated` excludes the others among these.
        Raise `SetBlockError` if `tokens` are not all tokens of the pass."""
        flat = tokens.flatten(0, -2)
        if self._tokens is not None and len(flat) != self._tokens:
            raise SetBlockError(
                "an adapter on noisy tokens only needs layers that see every token of a pass, and one sees a part"
            )
        return flat[self._rows]

    def gated(self, rows: Tensor) -> Tensor:
        """Return `rows`, or values computed from these, with zeros for tokens on which the adapter does not act."""
        # Not a product: NaN times 0 is NaN.
        return rows if self._left_out is None else rows.masked_fill(self._left_out[:, None], 0)


def gate_of(model: nn.Module) -> Gate | None:
    """Return the gate of a model whose adapter acts on some tokens only, or None."""
    return getattr(model, _GATE, None)


@contextmanager
def block_only(model: nn.Module, in_block: Tensor, *, is_fixed: bool = False) -> Iterator[None]:
    """While active, let the adapter, if there is one, act where `in_block` [B, T] is True (the future block). With `is_fixed`,
    the values are not examined, and a pass without a block costs as much as one with a block."""
    gate = gate_of(model)
    # A pass without a block is the base model's. Only on a CPU does the host learn that, and the block's place, without a wait.
    by_rows = in_block.device.type == "cpu" and not is_fixed
    if gate is not None and (not by_rows or in_block.any()):
        gate.set(in_block, by_rows=by_rows)
    try:
        yield
    finally:
        if gate is not None:
            gate.set(None)


def gated(model: nn.Module) -> None:
    """Let the LoRA layers that PEFT put into a model act by a gate. PEFT's layers are switched off, and hooks add their updates
    to the outputs of the base layers. The mask token gets its trained embedding; the head stays the base model's. Raise
    `SetBlockError` if a layer changes a weight for all tokens at once, as PEFT's do in experts."""
    from peft.tuners.lora import LoraLayer, ParamWrapper
    from peft.utils import TrainableTokensWrapper

    gate = Gate(model)
    for name, layer in model.named_modules():
        if isinstance(layer, TrainableTokensWrapper):
            switch_off(layer)
            if layer.token_adapter.tied_adapter is None:
                layer.original_module.register_forward_hook(partial(_embedded, layer.token_adapter))
        if isinstance(layer, LoraLayer):
            if isinstance(layer, ParamWrapper) or not layer.lora_B:
                raise SetBlockError(
                    f"adapter.only_noisy does not work with {name}, whose weights PEFT changes for all tokens at once: name "
                    "other layers in adapter.target_modules, such as [q_proj, k_proj, v_proj, o_proj]"
                )
            switch_off(layer)
            layer.get_base_layer().register_forward_hook(partial(_updated, layer, gate))


def _updated(layer: Any, gate: Gate, base: nn.Module, args: tuple[Any, ...], output: Tensor) -> Tensor | None:
    """Return a layer's output: the base layer's plus the update where the gate is open."""
    if not gate.is_open:
        return None
    assert layer.disable_adapters, "PEFT would add the update once more"
    check_output(output, base)
    (name,) = layer.active_adapters
    first, second, scaling = layer.lora_A[name], layer.lora_B[name], layer.scaling[name]
    is_cast = torch.is_autocast_enabled(output.device.type)
    inside = first(layer.lora_dropout[name](args[0] if is_cast else args[0].to(first.weight.dtype)))
    if torch.is_grad_enabled() and inside.dtype == output.dtype and type(base) is nn.Linear:
        add: Any = _AddedUpdate.apply
        updated: Tensor = add(output, gate.gated(gate.rows(inside)), second.weight.to(output.dtype), scaling)
        return updated
    summed = output.flatten(0, -2).to(torch.promote_types(output.dtype, inside.dtype), copy=True)  # [N, D]
    gate.rows(summed).add_(gate.gated(gate.rows(second(inside))), alpha=scaling)
    return summed.view_as(output).to(output.dtype)


def check_output(output: Any, base: nn.Module) -> None:
    """Raise `SetBlockError` if the output of the base layer is not a tensor."""
    if not isinstance(output, Tensor):
        raise SetBlockError(
            f"adapter.only_noisy does not work with a {type(base).__name__}, which returns several tensors: name other "
            "layers in adapter.target_modules, such as [q_proj, k_proj, v_proj, o_proj]"
        )


def switch_off(layer: Any) -> None:
    """Switch off the forward pass of one of PEFT's layers; its parameters can still be trained."""
    trained = [parameter for parameter in layer.parameters() if parameter.requires_grad]
    layer.enable_adapters(False)
    for parameter in trained:
        parameter.requires_grad_(True)


def _embedded(trained: Any, base: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    """Return an embedding's output [B, T, D], with the trained row [D] for the token that has one."""
    (name,) = trained.active_adapters
    (token,) = trained.token_indices[name]
    return with_row(output, base, ids=args[0], token=token, row=trained.trainable_tokens_delta[name][0])


def with_row(output: Tensor, base: nn.Module, *, ids: Tensor, token: int, row: Tensor) -> Tensor:
    """Return the output of the embedding `base` for `ids` [B, T], with another row for one token."""
    scaled = row.to(output.dtype) * getattr(base, "embed_scale", 1)
    return torch.where((ids == token)[..., None], scaled.to(output.dtype), output)


class _AddedUpdate(torch.autograd.Function):
    """Adds scaling * `inside` [..., r] @ `weight` [D, r]ᵀ to `output` [..., D] in place: a linear layer's output is not
    needed for its own backward pass. PEFT's way takes three more passes over all outputs in memory."""

    @staticmethod
    def forward(ctx: Any, output: Tensor, inside: Tensor, weight: Tensor, scaling: float) -> Tensor:
        ctx.save_for_backward(inside, weight)
        ctx.scaling = scaling
        output.view(-1, output.shape[-1]).addmm_(inside.reshape(-1, inside.shape[-1]), weight.t(), alpha=scaling)
        ctx.mark_dirty(output)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        inside, weight = ctx.saved_tensors
        flat = gradients[0].reshape(-1, weight.shape[0])
        of_inside = (flat @ weight).mul_(ctx.scaling).view_as(inside)
        of_weight = (flat.t() @ inside.reshape(-1, inside.shape[-1])).mul_(ctx.scaling)
        return gradients[0], of_inside, of_weight, None


@contextmanager
def quiet_peft() -> Iterator[None]:
    """Silence PEFT's warnings about automatic behaviour that users can't change."""
    with warnings.catch_warnings():
        for message in ("`is_gradient_checkpointing` is dep", "fan_in_fan_out is set", "The following .*_pattern"):
            warnings.filterwarnings("ignore", message)
        yield


@contextmanager
def uncast_inputs(model: nn.Module) -> Iterator[None]:
    """Let an adapter's layers take their inputs in the given type, which under autocast is half precision. PEFT's own context
    for this fails at layers of trainable tokens, which have no such switch."""
    layers = [module for module in model.modules() if getattr(module, "cast_input_dtype_enabled", False)]
    for layer in layers:
        layer.cast_input_dtype_enabled = False  # type: ignore[assignment]
    try:
        yield
    finally:
        for layer in layers:
            layer.cast_input_dtype_enabled = True  # type: ignore[assignment]
