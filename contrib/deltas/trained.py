"""Train a model's small delta in the form in which it is stored (`setblock.model.loading.delta`).

Knows modules and their matrices. Knows nothing of losses or files.

A delta that is rounded after training costs accuracy. Here the forward pass already has the rounded factors, so that training
makes up for what rounding takes. Gradients pass straight through the rounding.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from deltas.packing import Form, best_steps, factors_of, form_of, rounded, to_few_bits
from setblock.model.loading.delta import DOWN, PLANES, ROW_VALUES, ROWS, STEPS, UP, from_few_bits


class Rounding(NamedTuple):
    """Hold a factor [r, n] float32 and the steps [r] that round it."""

    values: Tensor
    steps: Tensor


class TrainedChange(nn.Module):
    """Add to a matrix [n, m] the product of rounded factors [r, n] and [r, m]; chosen rows are trained as they are."""

    def __init__(self, up: Rounding, down: Rounding, *, bits: int, rows: Tensor, values: Tensor) -> None:
        """Begin at factors.

        Args:
            up, down: [r, n] and [r, m] float32, with their steps [r].
            bits: of each number in them.
            rows: int64, rows of the matrix that are stored as they are.
            values: [rows, m] float32, theirs.
        """
        super().__init__()
        self._bits, self._rows = bits, rows
        self.up, self.down = nn.Parameter(up.values.contiguous()), nn.Parameter(down.values.contiguous())
        # As logarithms, so that a step of the optimiser is a share of a step of the rounding
        self.up_steps, self.down_steps = nn.Parameter(up.steps.log()), nn.Parameter(down.steps.log())
        self.values = nn.Parameter(values.clone())

    @classmethod
    def nearest(cls, change: Tensor, *, form: Form, rows: Sequence[int], values: Tensor) -> "TrainedChange":
        """Return the one nearest to a change [n, m] float32, but for `rows`, whose `values` are stored as they are."""
        change[list(rows)] = 0
        up, down = (Rounding(each, best_steps(each, form.bits)) for each in factors_of(change, form.rank))
        index = torch.tensor(list(rows), dtype=torch.long, device=change.device)
        return cls(up, down, bits=form.bits, rows=index, values=values)

    @classmethod
    def stored(cls, packed: dict[str, Tensor], name: str) -> "TrainedChange":
        """Return the one that `packed` gave for the matrix of a name."""
        factors = from_few_bits({key: each for key, each in packed.items() if key.startswith((name + UP, name + DOWN))})
        up, down = (Rounding(factors[name + part], packed[name + part + STEPS]) for part in (UP, DOWN))
        rows = packed.get(name + ROWS, torch.empty(0, dtype=torch.long))
        values = packed.get(name + ROW_VALUES, torch.empty(0, down.values.shape[1]))
        return cls(up, down, bits=len(packed[name + UP + PLANES]), rows=rows, values=values.float())

    def forward(self, start: Tensor) -> Tensor:
        """Return the changed matrix of a matrix [n, m] float32."""
        with torch.autocast(start.device.type, enabled=False):
            up = rounded(self.up, self.up_steps.exp(), self._bits)
            down = rounded(self.down, self.down_steps.exp(), self._bits)
            changed = torch.addmm(start, up.T, down)
            return changed.index_copy(0, self._rows, self.values) if len(self._rows) else changed

    @torch.no_grad()
    def packed(self, name: str) -> dict[str, Tensor]:
        """Return what `with_delta` reads of the matrix of a name."""
        steps = {name + UP: self.up_steps.exp(), name + DOWN: self.down_steps.exp()}
        packed = to_few_bits({name + UP: self.up, name + DOWN: self.down}, bits=self._bits, steps=steps)
        if len(self._rows):
            packed |= {name + ROWS: self._rows, name + ROW_VALUES: self.values.to(torch.bfloat16)}
        return packed


def hold_changes(
    model: nn.Module,
    start: Mapping[str, Tensor],
    *,
    form: Form,
    forms: Mapping[str, Form],
    rows: Mapping[str, Sequence[int]],
    stored: dict[str, Tensor] | None = None,
) -> dict[str, TrainedChange]:
    """Have each matrix of a model be the one of `start` plus a change that is trained; return the changes by name.

    Matrices that several modules share have one change. Vectors are trained as they are.

    Args:
        model: in float32; its weights say where the changes begin. They become those of `start`, and no gradient reaches them.
        form, forms, rows: as in `packed_delta`.
        stored: what `packed_delta` or training gave before. The changes and the vectors begin there, and not at the model's.
    """
    changes: dict[str, TrainedChange] = {}
    by_weight: dict[nn.Parameter, TrainedChange] = {}
    for path, module in list(model.named_modules()):
        for key, weight in list(module.named_parameters(recurse=False)):
            name = f"{path}.{key}"
            if weight.dim() != 2:
                if stored is not None:
                    weight.detach().copy_(stored[name])
                continue
            if weight not in by_weight:
                base, kept = start[name].to(weight), rows.get(name, ())
                changes[name] = by_weight[weight] = (
                    TrainedChange.nearest(
                        weight.detach() - base,
                        form=form_of(name, form, forms),
                        rows=kept,
                        values=weight.detach()[list(kept)],
                    )
                    if stored is None
                    else TrainedChange.stored(stored, name)
                )
                weight.requires_grad_(False).copy_(base)
            parametrize.register_parametrization(module, key, by_weight[weight])
    return changes
