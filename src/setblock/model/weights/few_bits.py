"""Store matrices in few bits, with one step for each row.

Knows tensors by name. Knows nothing of what they mean.

A row's numbers become the middles of 2^b steps of equal size around 0: (q + 1/2) step, -2^(b-1) <= q < 2^(b-1). The bits of q
are stored apart from each other, each bit of all numbers as a matrix.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

PLANES, STEPS, COLUMNS = ".planes", ".steps", ".columns"

_TRIED = [each / 10 for each in range(7, 51)]
"""Half the ranges that are tried for each row, over its root mean square."""


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


def from_few_bits(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `to_few_bits` packed, matrices in float32."""
    state: dict[str, Tensor] = {}
    for name, values in packed.items():
        if name.endswith(PLANES):
            whole = name.removesuffix(PLANES)
            planes, columns = values.numpy(), int(packed[whole + COLUMNS])
            bits = [np.unpackbits(plane, axis=1, count=columns) << bit for bit, plane in enumerate(planes)]
            levels = torch.from_numpy(np.sum(bits, axis=0, dtype=np.int16)) - (1 << (len(planes) - 1))
            state[whole] = (levels.float() + 0.5) * packed[whole + STEPS][:, None]
        elif not name.endswith((STEPS, COLUMNS)):
            state[name] = values
    return state


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
