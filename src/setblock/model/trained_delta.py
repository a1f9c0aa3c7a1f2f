"""Train a model's small delta in the form in which it is stored (`setblock.model.delta`).

Knows modules and their matrices. Knows nothing of losses or files.

A delta that is rounded after training costs accuracy. Here the forward pass already has the rounded factors, so that training
makes up for what rounding takes. Gradients pass straight through the rounding.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from setblock.model.delta import DOWN, ROW_VALUES, ROWS, UP, Form, factors_of, form_of
from setblock.model.few_bits import best_steps, rounded, to_few_bits


class TrainedChange(nn.Module):
    """Add to a matrix [n, m] the product of rounded factors [r, n] and [r, m]; chosen rows are trained as they are."""

    def __init__(self, change: Tensor, *, form: Form, rows: Sequence[int], values: Tensor) -> None:
        """Begin at the nearest change.

        Args:
            change: [n, m] float32.
            form: of the factors.
            rows: rows that are stored as they are.
            values: [rows, m] float32, theirs.
        """
        super().__init__()
        change[list(rows)] = 0
        up, down = factors_of(change, form.rank)
        self._bits, self._rows = form.bits, torch.tensor(list(rows), dtype=torch.long, device=change.device)
        self.up, self.down = nn.Parameter(up.contiguous()), nn.Parameter(down.contiguous())
        # As logarithms, so that a step of the optimiser is a share of a step of the rounding
        self.up_steps = nn.Parameter(best_steps(up, form.bits).log())
        self.down_steps = nn.Parameter(best_steps(down, form.bits).log())
        self.values = nn.Parameter(values.clone())

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
) -> dict[str, TrainedChange]:
    """Have each matrix of a model be the one of `start` plus a change that is trained; return the changes by name.

    Matrices that several modules share have one change. Vectors are trained as they are.

    Args:
        model: in float32; its weights say where the changes begin. They become those of `start`, and no gradient reaches them.
        form, forms, rows: as in `packed_delta`.
    """
    changes: dict[str, TrainedChange] = {}
    by_weight: dict[nn.Parameter, TrainedChange] = {}
    for path, module in list(model.named_modules()):
        for key, weight in list(module.named_parameters(recurse=False)):
            if weight.dim() != 2:
                continue
            name = f"{path}.{key}"
            if weight not in by_weight:
                base, kept = start[name].to(weight), rows.get(name, ())
                changes[name] = by_weight[weight] = TrainedChange(
                    weight.detach() - base,
                    form=form_of(name, form, forms),
                    rows=kept,
                    values=weight.detach()[list(kept)],
                )
                weight.requires_grad_(False).copy_(base)
            parametrize.register_parametrization(module, key, by_weight[weight])
    return changes
