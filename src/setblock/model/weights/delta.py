"""Store fine-tuned weights as a small delta from the weights that they started from.

Knows tensors by name and shape. Knows nothing of models or files.

The change of a matrix is stored as the nearest matrix of a low rank, as two factors in few bits: LoRA's form, found afterwards
by singular values. Twice the rank at half the bits is nearer. Vectors, and chosen rows, are stored as they are.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from setblock.model.weights.few_bits import from_few_bits, to_few_bits

UP, DOWN, ROWS, ROW_VALUES = ".up", ".down", ".rows", ".row_values"


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


def with_delta(base: Mapping[str, Tensor], packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `packed_delta` packed, in float32; tensors that it does not name are those of `base`."""
    packed = from_few_bits(packed)
    made: dict[str, Tensor] = {}
    for name, weight in base.items():
        weight = packed.get(name, weight).float()
        if name + UP in packed:
            weight = weight + packed[name + UP].T @ packed[name + DOWN]
        if name + ROWS in packed:
            weight[packed[name + ROWS]] = packed[name + ROW_VALUES].float()
        made[name] = weight
    return made
