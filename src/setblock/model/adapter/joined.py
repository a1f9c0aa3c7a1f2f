"""Join adapted layers that read one input into one linear layer: their weights and the adapter's, stacked.

Knows adapted layers. Knows nothing of how the one layer's weight is kept: prepacking replaces it as any other.

    x [Wq; Wk; Wv; A]ᵀ = q, k, v, inside        one product in the place of four
    inside diag(Bq; Bk; Bv)ᵀ                    one in the place of three; zeros are less to read than products are to begin
"""

from collections import defaultdict
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from setblock.model.adapter.adapted import AdaptedLinear, InnerProduct, replace_modules
from setblock.model.adapter.siblings import SharedProduct


class JoinedLinear(nn.Module):
    """Compute what several adapted layers compute: by one product, and a small one where the gate is open."""

    def __init__(self, inner: InnerProduct, layers: Sequence[AdaptedLinear]) -> None:
        """Join the weights of `layers`.

        Args:
            inner: of `layers`, which are all that have it, in its order; their base layers are `nn.Linear`.
        """
        super().__init__()
        bases: list[nn.Linear] = [layer.base_layer for layer in layers]
        self.sizes = [base.out_features for base in bases]
        self.inner = inner
        with torch.device("meta"):
            self.joined = nn.Linear(bases[0].in_features, sum(self.sizes) + len(inner.weight), bias=False)
        self.joined.weight = _frozen([*(base.weight for base in bases), inner.weight])
        if any(base.bias is not None for base in bases):
            zeros = [inner.weight.new_zeros(size) for size in (*self.sizes, len(inner.weight))]
            biases = [zero if base.bias is None else base.bias for base, zero in zip(bases, zeros, strict=False)]
            self.joined.bias = _frozen([*biases, zeros[-1]])
        with torch.device("meta"):
            self.outer = nn.Linear(len(inner.weight), sum(self.sizes), bias=False)
        self.outer.weight = _diagonal([layer.outer.t() for layer in layers])
        self._shared = SharedProduct()

    def part(self, index: int, hidden: Tensor) -> Tensor:
        """Return [..., out_features] of one of the layers, for its input [..., in_features]."""
        return self._shared.part(index, hidden, self.forward)

    def forward(self, hidden: Tensor) -> Sequence[Tensor]:
        """Map [..., in_features] to [..., out_features] for each layer."""
        output, inside = torch.split(self.joined(hidden), [sum(self.sizes), len(self.inner.weight)], dim=-1)
        if self.inner.gate.is_open:
            output = output + self.outer(self.inner.gate.gated(inside))
        return torch.split(output, self.sizes, dim=-1)


class JoinedPart(nn.Module):
    """Replace one of the layers in the model."""

    def __init__(self, whole: JoinedLinear, index: int) -> None:
        super().__init__()
        self.whole, self._index = whole, index

    def forward(self, hidden: Tensor) -> Tensor:
        """Map [..., in_features] to [..., out_features]."""
        return self.whole.part(self._index, hidden)

    @property
    def weight(self) -> Tensor:
        """Return a weight of the layer's shape and type, for models that ask for these; its values are no numbers."""
        inner = self.whole.inner.weight
        return inner.new_full((), torch.nan).expand(self.whole.sizes[self._index], inner.shape[1])


def join_adapted(model: nn.Module) -> None:
    """Put a `JoinedLinear` in the place of adapted layers that read one input."""
    groups: defaultdict[InnerProduct, list[AdaptedLinear]] = defaultdict(list)
    for layer in model.modules():
        if isinstance(layer, AdaptedLinear):
            groups[layer.inner].append(layer)
    replaced: dict[nn.Module, nn.Module] = {}
    for inner, layers in groups.items():
        if all(type(layer.base_layer) is nn.Linear for layer in layers):
            layers = sorted(layers, key=lambda layer: layer.index)
            whole = JoinedLinear(inner, layers)
            replaced |= {layer: JoinedPart(whole, layer.index) for layer in layers}
    replace_modules(model, replaced)


def _frozen(parts: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)


def _diagonal(parts: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.block_diag(*parts), requires_grad=False)  # type: ignore[no-untyped-call]
