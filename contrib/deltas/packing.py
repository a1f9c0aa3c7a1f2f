"""Store matrices in few bits, and fine-tuned weights as a small delta from the weights that they started from.

Knows tensors by name and shape, in the form that `setblock.model.loading.delta` reads. Knows nothing of models or files.

The change of a matrix is stored as the nearest matrix of a low rank, as two factors in few bits: LoRA's form, found afterwards
by singular values. Twice the rank at half the bits is nearer.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from setblock.model.loading.delta import COLUMNS, DOWN, PLANES, ROW_VALUES, ROWS, STEPS, UP

_TRIED = [each / 10 for each in range(7, 51)]
"""Half the ranges that are tried for each row, over its root mean square."""


class Form(NamedTuple):
    """Hold the rank r of the factors [n, r] and [r, m] of a change [n, m], and the bits of each number in them."""

    rank: int
    bits: int


def packed_delta(
    base: Mapping[str, Tensor],
    tuned: Mapping[str, Tensor],
    *,
    form: Form,
    forms: Mapping[str, Form],
    rows: Mapping[str, Sequence[int]],
) -> dict[str, Tensor]:
    """Return what `with_delta` needs to make about `tuned` of `base`; both have tensors of the same names and shapes.

    Args:
        form: of the matrices' factors.
        forms: other forms, by a part of the matrix's name.
        rows: by a matrix's name, rows of it that are stored in bfloat16 as they are.
    """
    packed: dict[str, Tensor] = {}
    for name, weight in tuned.items():
        if weight.dim() != 2:
            packed[name] = weight.float()
            continue
        change = weight.float() - base[name].float()
        if kept := list(rows.get(name, ())):
            packed[name + ROWS] = torch.tensor(kept)
            packed[name + ROW_VALUES] = weight[kept].to(torch.bfloat16)
            change[kept] = 0
        rank, bits = form_of(name, form, forms)
        up, down = factors_of(change, rank)
        packed |= to_few_bits({name + UP: up, name + DOWN: down}, bits=bits)
    return packed


def form_of(name: str, form: Form, forms: Mapping[str, Form]) -> Form:
    """Return the form of a matrix: the one whose key is a part of its name, else `form`."""
    return next((each for part, each in forms.items() if part in name), form)


def factors_of(change: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return the factors [r, n] and [r, m] of the nearest matrix of a rank to a change [n, m].

    They are rows of both, so that each component of the change has its own step.
    """
    left, values, right = torch.linalg.svd(change, full_matrices=False)
    root = values[:rank].sqrt()
    return (left[:, :rank] * root).T, root[:, None] * right[:rank]


def to_few_bits(
    state: Mapping[str, Tensor], *, bits: int, steps: Mapping[str, Tensor] | None = None
) -> dict[str, Tensor]:
    """Return the tensors with each matrix [n, m] as `bits` planes [b, n, m / 8] uint8 and steps [n] float32; others stay.

    Args:
        bits: b, from 1 to 8.
        steps: [n] float32 of each matrix; by default those with the least squared error.
    """
    packed: dict[str, Tensor] = {}
    for name, values in state.items():
        if values.dim() != 2:
            packed[name] = values
            continue
        step = best_steps(values.float(), bits) if steps is None else steps[name]
        levels = (_levels(values.float(), step, bits) + (1 << (bits - 1))).to(torch.uint8).numpy()
        planes = np.stack([np.packbits((levels >> bit) & 1, axis=1) for bit in range(bits)])
        packed[name + PLANES] = torch.from_numpy(planes).contiguous()
        packed[name + STEPS] = step
        packed[name + COLUMNS] = torch.tensor(values.shape[1])
    return packed


def _levels(values: Tensor, steps: Tensor, bits: int) -> Tensor:
    """Return q [n, m] of values [n, m]."""
    half = 1 << (bits - 1)
    return (values / steps[:, None]).floor().clamp(-half, half - 1)


def rounded(values: Tensor, steps: Tensor, bits: int) -> Tensor:
    """Return matrix [n, m] as its steps [n] and bits round it; gradients pass straight through within the range.

    A number outside of the range gives its gradient to its step alone: learned step size quantization (Esser et al., 2020).
    """
    half = 1 << (bits - 1)
    scaled = (values / steps[:, None]).clamp(-half, half)
    levels = scaled.detach().floor().clamp(max=half - 1) + 0.5
    return (scaled + (levels - scaled).detach()) * steps[:, None]


def best_steps(values: Tensor, bits: int) -> Tensor:
    """Return the steps [n] with the least squared error, of those that are tried."""
    root_mean_square = values.square().mean(dim=1).sqrt().clamp(min=torch.finfo(torch.float32).tiny)
    best, least = root_mean_square, torch.full_like(root_mean_square, torch.inf)
    for tried in _TRIED:
        steps = root_mean_square * tried / (1 << (bits - 1))
        error = ((_levels(values, steps, bits) + 0.5) * steps[:, None] - values).square().sum(dim=1)
        best, least = torch.where(error < least, steps, best), torch.minimum(error, least)
    return best
