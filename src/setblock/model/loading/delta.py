"""Fine-tuned weights, restored from a small delta and the base weights.

The change of a matrix is stored as two low-rank factors, as in LoRA. Vectors and selected rows are stored unchanged. Factors
are quantised to b bits with one step size for each row: a number is (q + 1/2) step, -2^(b-1) <= q < 2^(b-1). Each bit of q is
stored as a separate matrix.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

UP, DOWN, ROWS, ROW_VALUES = ".up", ".down", ".rows", ".row_values"
PLANES, STEPS, COLUMNS = ".planes", ".steps", ".columns"


def with_delta(base: Mapping[str, Tensor], packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the fine-tuned tensors in float32: those of `base` changed by the delta `packed`. Others are those of `base`."""
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
    """Return the tensors of `packed` with the quantised matrices in float32; others are returned as they are."""
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
