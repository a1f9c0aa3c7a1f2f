"""Join adapted layers that read one input into one linear layer: their weights and the adapter's, stacked.

Knows adapted layers. Knows nothing of how the one layer's weight is kept: prepacking replaces it as any other.

    x [Wq; Wk; Wv; A]ᵀ = q, k, v, inside        one product in the place of four
    inside diag(Bq; Bk; Bv)ᵀ                    one in the place of three; zeros are less to read than products are to begin
"""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from setblock.model.adapter.adapted import Update, replace_modules
from setblock.model.adapter.siblings import SharedProduct


class JoinedLinear(nn.Module):
    """Compute what several adapted layers compute: by one product, and a small one where the gate is open."""

    def __init__(self, update: Update) -> None:
        """Join the layers of an update, which are all `nn.Linear`."""
        super().__init__()
        bases: list[nn.Linear] = [*update.layers]  # type: ignore[list-item]
        self.gate = update.gate
        self.sizes = [*(base.out_features for base in bases), len(update.inner)]
        with torch.device("meta"):
            self.joined = nn.Linear(bases[0].in_features, sum(self.sizes), bias=False)
        self.joined.weight = _frozen([*(base.weight for base in bases), update.inner])
        if any(base.bias is not None for base in bases):
            zeros = [update.inner.new_zeros(size) for size in self.sizes]
            biases = [zero if base.bias is None else base.bias for base, zero in zip(bases, zeros, strict=False)]
            self.joined.bias = _frozen([*biases, zeros[-1]])
        outers = [update.outer(index) for index in range(len(bases))]
        self.outer: Tensor
        self.register_buffer("outer", torch.block_diag(*outers))  # type: ignore[no-untyped-call]
        self._shared = SharedProduct()

    def part(self, index: int, hidden: Tensor) -> Tensor:
        """Return [..., out_features] of one of the layers, for its input [..., in_features]."""
        return self._shared.part(index, hidden, self.forward)

    def forward(self, hidden: Tensor) -> Sequence[Tensor]:
        """Map [..., in_features] to [..., out_features] for each layer."""
        output = self.joined(hidden)
        if self.gate.is_open:
            rows, width = self.gate.rows(output), sum(self.sizes[:-1])
            rows[:, :width].addmm_(self.gate.gated(rows[:, width:]), self.outer)
        return torch.split(output, self.sizes, dim=-1)[:-1]


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
        outer = self.whole.outer
        return outer.new_full((), torch.nan).expand(self.whole.sizes[self._index], self.whole.joined.in_features)


def join_adapted(model: nn.Module) -> None:
    """Put a `JoinedLinear` in the place of adapted layers that read one input."""
    replaced: dict[nn.Module, nn.Module] = {}
    for update in [module for module in model.modules() if isinstance(module, Update)]:
        if all(type(layer) is nn.Linear for layer in update.layers):
            whole = JoinedLinear(update)
            replaced |= {layer: JoinedPart(whole, index) for index, layer in enumerate(update.layers)}
    replace_modules(model, replaced)


def _frozen(parts: Sequence[Tensor]) -> nn.Parameter:
    return nn.Parameter(torch.cat([part.detach() for part in parts]), requires_grad=False)
