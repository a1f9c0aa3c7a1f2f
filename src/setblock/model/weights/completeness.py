"""Check that what was written holds every tensor that it should: by name, shape and sum.

Knows tensors and safetensors files. Knows nothing of models, nor of what wraps them.
"""

import math
from collections.abc import Iterable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from setblock.errors import SetBlockError

Sums = dict[str, tuple[tuple[int, ...], float]]
"""The shape of each tensor and the sum of its elements in float64, by name."""


def sums_of(tensors: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype | None = None) -> Sums:
    """Return shapes and sums. Of tensors that are sharded over processes (DTensor), every process must ask.

    Args:
        tensors: pairs of name and tensor.
        dtype: the type that they are rounded to first, if any.
    """
    found: Sums = {}
    for name, tensor in tensors:
        rounded = tensor.detach() if dtype is None or not tensor.is_floating_point() else tensor.detach().to(dtype)
        total = rounded.sum(dtype=torch.float64)
        whole = getattr(total, "full_tensor", lambda total=total: total)()
        found[name] = (tuple(tensor.shape), float(whole))
    return found


def stored_sums(folder: Path) -> Sums:
    """Return shapes and sums of all tensors in the safetensors files of a folder."""
    found: Sums = {}
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            found |= sums_of((name, file.get_tensor(name)) for name in file.keys())  # noqa: SIM118
    return found


def refuse_loss(expected: Sums, found: Sums, where: str | Path) -> None:
    """Compare what is in `where` with what should be.

    Transformers stores some models' tensors under other names, in parts: those whose names are not there are compared by their
    number of elements and their sum, all together.

    Raises:
        SetBlockError: a tensor is missing, or has another shape or sum.
    """
    for name in expected.keys() & found.keys():
        (shape, total), (there, total_there) = expected[name], found[name]
        if there != shape or not _same(total, total_there):
            raise SetBlockError(
                f"{where} is incomplete: {name} has shape {list(there)} and sum {total_there:g} there, and "
                f"{list(shape)} and {total:g} in the model"
            )
    missing, others = (_all_of(a, names=a.keys() - b.keys()) for a, b in ((expected, found), (found, expected)))
    if missing[0] and not (missing[0] == others[0] and _same(missing[1], others[1])):
        names = sorted(expected.keys() - found.keys())
        raise SetBlockError(
            f"{where} is incomplete: {len(names)} of {len(expected)} tensors are missing there, in whole or in part, "
            f"{names[0]} the first"
        )


def _same(one: float, other: float) -> bool:
    """Return whether two sums are equal up to the order of their terms; a model may also have diverged."""
    return math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-6) or (math.isnan(one) and math.isnan(other))


def _all_of(sums: Sums, *, names: Iterable[str]) -> tuple[int, float]:
    """Return the number of elements of some tensors, and their sum."""
    chosen = [sums[name] for name in sorted(names)]
    return sum(math.prod(shape) for shape, _ in chosen), math.fsum(total for _, total in chosen)
