"""Read fine-tuned weights that are stored as a small delta from the weights that they started from.

Knows tensors by name and shape. Knows nothing of models or files, or of how a delta is made.

The change of a matrix is stored as two factors of a low rank, as LoRA has it. Vectors, and chosen rows, are stored as they are.
A row of a factor has one step. Its numbers are the middles of 2^b steps of that size around 0: (q + 1/2) step,
-2^(b-1) <= q < 2^(b-1). The bits of q are stored apart from each other, each bit of all numbers as a matrix.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

UP, DOWN, ROWS, ROW_VALUES = ".up", ".down", ".rows", ".row_values"
PLANES, STEPS, COLUMNS = ".planes", ".steps", ".columns"


def with_delta(base: Mapping[str, Tensor], packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of which `packed` is the delta, in float32; tensors that it does not name are those of `base`."""
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


def from_few_bits(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors whose matrices are stored in few bits: these in float32, others as they are."""
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
