"""Inference with an adapter of the future block: a few small products in the model's own type for each layer, without PEFT.
Training is in `setblock.model.adapter.adapter`.

LoRA adds `B A x`. Layers with the same input x share one product with A, of the block's rows only, and each adds its part to
these rows of its output. All other rows are exactly the base model's. Hooks on the base layers, of any type, do so (`Update`).
Where weights will be prepacked, such layers are joined to one (`JoinedLinear`), and so are the adapter's parts:

    x [Wq; Wk; Wv]ᵀ = q, k, v         one product instead of three, of all rows
    x Aᵀ diag(Bq; Bk; Bv)ᵀ            two products, of the block's rows; reading zeros costs less than more products
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel

from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import Gate, check_output, with_row
from setblock.model.adapter.files import lora_weights
from setblock.model.weights import product_in_parts


class SharedProduct:
    """A one-use cache of a product for layers with the same input. The first layer called computes the parts of all, and each
    takes its own out of the cache. If a part is not there, or the input is another one, the product is computed again."""

    def __init__(self) -> None:
        self._input: Tensor | None = None
        self._parts: dict[int, Tensor] = {}

    def part(self, index: int, hidden: Tensor, product: Callable[[Tensor], Sequence[Tensor]]) -> Tensor:
        """Return the part of one layer for its input [..., D]. `product` computes all layers' parts, [..., size] each."""
        if self._input is not hidden or index not in self._parts:
            self._input, self._parts = hidden, dict(enumerate(product(hidden)))
        part = self._parts.pop(index)
        if not self._parts:
            self._input = None
        return part


class Update(nn.Module):
    """The adapter's update of layers with the same input, added to their outputs where the gate is open."""

    def __init__(
        self, gate: Gate, layers: Sequence[nn.Module], inner: Sequence[Tensor], outer: Sequence[Tensor]
    ) -> None:
        """Put a hook on each of the base layers. The gate selects the rows to update. For each layer, `inner` is A
        [r, in_features] and `outer` the transposed B [r, out_features], with LoRA's factor included."""
        super().__init__()
        self.gate, self.layers = gate, tuple(layers)
        self.ranks = [len(each) for each in inner]
        self.inner: Tensor  # [R, in_features]
        self.register_buffer("inner", torch.cat([*inner]))
        for index, (layer, each) in enumerate(zip(layers, outer, strict=True)):
            self.register_buffer(f"outer_{index}", each)
            layer.register_forward_hook(partial(self._add, index))
        layers[0].add_module("update", self)  # so that it moves with the model
        self._shared = SharedProduct()

    def outer(self, index: int) -> Tensor:
        """Return the transposed B [r, out_features] of one of the layers."""
        return self.get_buffer(f"outer_{index}")

    def _inside(self, hidden: Tensor) -> Sequence[Tensor]:
        """Map [..., in_features] to [n, r] for each layer."""
        inside = product_in_parts(partial(linear, weight=self.inner), self.gate.rows(hidden))
        return torch.split(self.gate.gated(inside), self.ranks, dim=-1)

    def _add(self, index: int, base: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        if self.gate.is_open:
            inside = self._shared.part(index, args[0], self._inside)
            self.gate.rows(output).addmm_(inside, self.outer(index))


def load_adapter(model: PreTrainedModel, config: Mapping[str, Any], weights: Mapping[str, Tensor]) -> None:
    """Put an adapter, as returned by `read_lora`, into a model for decoding. Raise `SetBlockError` if the model lacks one of
    the adapter's layers, or if a layer is of a kind that can't act on some tokens only."""
    lora, modules = lora_weights(config, weights, dtype=model.dtype), dict(model.named_modules())
    for name, (token, row) in lora.rows.items():
        modules[name].register_buffer("trained_row", row)
        modules[name].register_forward_hook(partial(_with_trained_row, token))
    factors = lora.factors
    bases = {name: _base(modules, name, {inner.shape[1], outer.shape[1]}) for name, (inner, outer) in factors.items()}
    gate = Gate(model)
    for group in sharing_input(model, bases):
        for is_linear in (True, False):  # layers that can be joined, then the others
            names = [name for name in group if (type(bases[name]) is nn.Linear) is is_linear]
            if names:
                Update(gate, [bases[name] for name in names], *zip(*(factors[name] for name in names), strict=True))


def _base(modules: Mapping[str, Any], name: str, sizes: set[int]) -> nn.Module:
    """Return the base layer that an adapter updates. Raise `SetBlockError` if there is none of these `sizes`."""
    layer = modules.get(name)
    shape = getattr(getattr(layer, "weight", None), "shape", None)
    if not isinstance(layer, nn.Module) or shape is None or set(shape) != sizes:
        found = "which the model lacks" if layer is None else f"not {list(shape or ())}, which the model's layer has"
        raise SetBlockError(f"the adapter is for another model: {name} with weights of sizes {sorted(sizes)}, {found}")
    return layer


def _with_trained_row(token: int, base: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
    return with_row(output, base, ids=args[0], token=token, row=base.trained_row)


@torch.inference_mode()
def sharing_input(model: PreTrainedModel, layers: Mapping[str, nn.Module]) -> list[list[str]]:
    """Return the names of `layers` in groups that are called one after the other with the same tensor. A layer that a short
    pass does not call exactly once, such as an expert, is a group of its own. Raise `SetBlockError` if the output of one is not
    a tensor."""
    calls: list[tuple[Tensor, str]] = []

    def watch(name: str, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        check_output(output, module)
        if args:
            calls.append((args[0], name))

    with ExitStack() as hooks:
        for name, layer in layers.items():
            hooks.enter_context(layer.register_forward_hook(partial(watch, name)))
        model(input_ids=torch.ones((1, 2), dtype=torch.long, device=model.device), use_cache=False)
    times = Counter(name for _, name in calls)
    groups = groupby(calls, key=lambda call: id(call[0]))
    together = [[name for _, name in group if times[name] == 1] for _, group in groups]
    return [*filter(None, together), *([name] for name in layers if times[name] != 1)]


class JoinedLinear(nn.Module):
    """Several adapted layers as one: a single product, and two small ones where the gate is open."""

    def __init__(self, update: Update) -> None:
        """Join the layers of an update, which must all be `nn.Linear`."""
        super().__init__()
        bases: list[nn.Linear] = [*update.layers]  # type: ignore[list-item]
        self.gate = update.gate
        self.sizes = [base.out_features for base in bases]
        outers = torch.block_diag(*(update.outer(index) for index in range(len(bases))))  # type: ignore[no-untyped-call]
        self.joined = _linear([base.weight for base in bases])
        self.inner, self.outer = _linear([update.inner]), _linear([outers.t()])
        if any(base.bias is not None for base in bases):
            biases = [update.inner.new_zeros(base.out_features) if base.bias is None else base.bias for base in bases]
            self.joined.bias = _frozen(biases)
        self.none: Tensor = outers.new_full((), torch.nan)
        self.shared = SharedProduct()

    def forward(self, hidden: Tensor) -> Sequence[Tensor]:
        """Map [..., in_features] to [..., out_features] for each layer."""
        output = self.joined(hidden)
        if self.gate.is_open:
            inside = self.gate.gated(self.inner(self.gate.rows(hidden)))
            self.gate.rows(output).add_(self.outer(inside))
        return torch.split(output, self.sizes, dim=-1)


class JoinedPart(nn.Module):
    """The replacement of one joined layer in the model."""

    def __init__(self, whole: JoinedLinear, index: int) -> None:
        super().__init__()
        self.whole, self._index = whole, index

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return self.whole.shared.part(self._index, hidden, self.whole)

    @property
    def weight(self) -> Tensor:
        """A weight of the layer's shape and type, for models that read these. Its values are NaN."""
        return self.whole.none.expand(self.whole.sizes[self._index], self.whole.joined.in_features)


def join_adapted(model: nn.Module) -> None:
    """Replace adapted layers with the same input by a `JoinedLinear`."""
    replaced: dict[nn.Module, nn.Module] = {}
    for update in model.modules():
        if isinstance(update, Update) and all(type(layer) is nn.Linear for layer in update.layers):
            whole = JoinedLinear(update)
            replaced |= {layer: JoinedPart(whole, index) for index, layer in enumerate(update.layers)}
    for module in [*model.modules()]:
        for name, child in module._modules.items():
            if child is not None and child in replaced and module not in replaced:
                setattr(module, name, replaced[child])


def _frozen(parts: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)


def _linear(weights: Sequence[Tensor]) -> nn.Linear:
    """Return a linear layer with these weights, stacked."""
    weight = _frozen(weights)
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = weight
    return linear
