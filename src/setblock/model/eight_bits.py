"""Read and write a shipped adapter's file: its matrices in eight bits, with a scale for each row.

An adapter that acts on the future block alone only makes drafts, which exact mode checks. So what rounding costs is speed,
never a wrong text. Knows tensors by name. Knows nothing of what they mean.
"""

import torch
from torch import Tensor

_SCALE = ".scale"
_LARGEST = 127


def to_eight_bits(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return each matrix [n, m] as int8 [n, m] with float32 scales [n], named with `.scale`; other tensors as they are."""
    packed: dict[str, Tensor] = {}
    for name, values in state.items():
        if values.dim() != 2:
            packed[name] = values
            continue
        scale = values.float().abs().amax(dim=1).clamp(min=torch.finfo(torch.float32).tiny) / _LARGEST
        packed[name] = (values.float() / scale[:, None]).round().to(torch.int8)
        packed[name + _SCALE] = scale
    return packed


def from_eight_bits(packed: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that `to_eight_bits` packed, matrices in float32."""
    state: dict[str, Tensor] = {}
    for name, values in packed.items():
        if name.endswith(_SCALE) and name.removesuffix(_SCALE) in packed:
            continue
        scale = packed.get(name + _SCALE)
        state[name] = values if scale is None else values.float() * scale[:, None]
    return state
