"""Run an adapter of the future block in decoding: few products of the model's own type for each layer.

Knows what PEFT has loaded, and takes its layers' place. Knows nothing of training (`setblock.model.adapter.adapter`).

LoRA adds `B A x`. Layers that read one input x have one product `x Aᵀ`, which is zero for tokens outside the block; so what a
layer adds to their outputs is zero, and they stay exactly the base model's.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import ADAPTER_FOLDER, check_layer, check_output, quiet_peft, trained_row, with_row
from setblock.model.adapter.gate import Gate
from setblock.model.adapter.siblings import SharedProduct, sharing_input


class InnerProduct(nn.Module):
    """Compute `x Aᵀ` for the layers that read one input, with zeros for tokens that the gate leaves out."""

    def __init__(self, gate: Gate, weights: Sequence[Tensor]) -> None:
        """Take the matrices A [r, in_features], one for each layer."""
        super().__init__()
        self.weight: Tensor
        self.register_buffer("weight", torch.cat([*weights]))
        self.gate = gate
        self._sizes = [len(weight) for weight in weights]
        self._shared = SharedProduct()

    def part(self, index: int, hidden: Tensor) -> Tensor:
        """Return [..., r] of one of the layers, for its input [..., in_features]."""
        return self._shared.part(index, hidden, self.forward)

    def forward(self, hidden: Tensor) -> Sequence[Tensor]:
        """Map [..., in_features] to [..., r] for each layer."""
        return torch.split(self.gate.gated(linear(hidden, self.weight)), self._sizes, dim=-1)


class AdaptedLinear(nn.Module):
    """Add an adapter's update to a linear layer where the gate is open."""

    def __init__(self, base_layer: nn.Module, inner: InnerProduct, index: int, outer: Tensor) -> None:
        """Take the parts of the layer.

        Args:
            base_layer: the model's own.
            inner: has the product with A.
            index: this layer's place in it.
            outer: [r, out_features], the transposed B, with LoRA's factor in it.
        """
        super().__init__()
        self.base_layer: Any = base_layer
        self.inner = inner
        self.outer: Tensor
        self.register_buffer("outer", outer)
        self.index = index

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        output: Tensor = self.base_layer(hidden)
        if not self.inner.gate.is_open:
            return output
        inside = self.inner.part(self.index, hidden)
        flat = output.reshape(-1, output.shape[-1])
        return torch.addmm(flat, inside.reshape(len(flat), -1), self.outer).view(output.shape)

    @property
    def weight(self) -> Tensor:
        """Return the base layer's weight."""
        weight: Tensor = self.base_layer.weight
        return weight

    @property
    def bias(self) -> Tensor | None:
        """Return the base layer's bias."""
        bias: Tensor | None = self.base_layer.bias
        return bias


def load_adapter(model: PreTrainedModel, source: str) -> Gate:
    """Put the adapter that lies in the checkpoint `source` into the model that was loaded from it, to decode with.

    Raises:
        SetBlockError: PEFT is not installed, or a layer is of a kind that can't act on some tokens only.
        Exception: whatever PEFT raises over a file that is missing or broken.
    """
    try:
        from peft import PeftModel
    except ImportError as error:
        raise SetBlockError("the checkpoint's adapter needs PEFT: pip install 'setblock[peft]'") from error
    with quiet_peft():
        PeftModel.from_pretrained(model, source, subfolder=ADAPTER_FOLDER)  # changes the model's layers in place
    return _taken_over(model)


def _taken_over(model: PreTrainedModel) -> Gate:
    """Put layers of ours in the place of PEFT's, and return their gate."""
    from peft.tuners.lora import LoraLayer
    from peft.utils import TrainableTokensWrapper

    gate = Gate(model)
    layers: dict[str, Any] = {}
    replaced: dict[nn.Module, nn.Module] = {}
    for name, layer in model.named_modules():
        if isinstance(layer, TrainableTokensWrapper):
            replaced[layer] = layer.original_module
            if layer.token_adapter.tied_adapter is None:
                _set_row(layer.original_module, *trained_row(layer.token_adapter))
        elif isinstance(layer, LoraLayer):
            check_layer(layer, name)
            layer.enable_adapters(False)
            layers[name] = layer
    bases: dict[str, nn.Module] = {name: layer.get_base_layer() for name, layer in layers.items()}
    checks = [base.register_forward_hook(lambda base, _, output: check_output(output, base)) for base in bases.values()]
    groups = sharing_input(model, bases)
    for check in checks:
        check.remove()
    for group in groups:
        of_group = [layers[name] for name in group]
        adapters = [layer.active_adapters[0] for layer in of_group]
        inner = InnerProduct(
            gate,
            [
                layer.lora_A[name].weight.detach().to(model.dtype)
                for layer, name in zip(of_group, adapters, strict=True)
            ],
        )
        for index, (layer, name) in enumerate(zip(of_group, adapters, strict=True)):
            outer = layer.lora_B[name].weight.detach() * layer.scaling[name]
            replaced[layer] = AdaptedLinear(
                layer.get_base_layer(), inner, index, outer.t().to(model.dtype).contiguous()
            )
    replace_modules(model, replaced)
    return gate


def replace_modules(model: nn.Module, replaced: Mapping[nn.Module, nn.Module]) -> None:
    """Put other modules in the place of some, wherever the model has them."""
    for module in [*model.modules()]:
        for name, child in module._modules.items():
            if child is not None and child in replaced and module not in replaced:
                setattr(module, name, replaced[child])


def _set_row(embedding: nn.Module, token: int, row: Tensor) -> None:
    """Have an embedding give another row for one token."""
    embedding.register_buffer("trained_row", row.detach().clone())
    embedding.register_forward_hook(partial(_with_trained_row, token))


def _with_trained_row(token: int, base: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return with_row(output, base, ids=args[0], token=token, row=base.trained_row)
