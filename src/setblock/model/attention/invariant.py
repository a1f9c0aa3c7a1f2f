"""Attend with the same bits for a query whatever else shares its pass, for models in half precision on a CPU.

Knows queries, keys and masks. Knows nothing of blocks.

Method `exact` compares the tokens of passes of different shapes: a plain pass feeds one token, a commit feeds k of them with a
block behind. In bfloat16 a logit keeps 8 bits, so the last bit of a hidden state often decides a token, and kernels whose order
of summation depends on the shapes give texts that differ. Here every sum has one order:

    scores     q k^T in float32: the sum is over D, which is fixed, by a kernel of at least `_ROWS` rows
    weights    softmax in float32 over whole chunks of keys: what is masked adds exact zeros at the end
    values     one product for each chunk of `CHUNK` keys, then the sum over chunks, in order, in float32
"""

import torch
from torch import Tensor
from torch.nn.functional import pad

from setblock.model.attention.attention import added

CHUNK = 64
"""Keys whose values are summed by one product. Its size is the same for every length of the cache. Where the keys are whole
chunks, and the mask is an addition in float32, nothing of them is written anew."""

LEAST_ROWS = 2
"""Tokens of a pass, and outputs of its head, at least: a product of one row has another kernel."""

_ROWS = 4
"""Queries of a product at least. With fewer, float32 kernels sum in another order."""


def invariant_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float | None = None
) -> Tensor:
    """Return masked attention [B, H, R, D] of queries [B, H, R, D] over keys and values [B, H, K, D], all of one
    half-precision type.

    A row that may see nothing is not allowed.

    Args:
        mask: [B, 1, R, K], bool where each query may see a key, or what is added to its score; None where it sees all.
        scale: what the scores are multiplied with; by default 1 / √D.
    """
    (batch, heads, rows, size), keys = query.shape, key.shape[2]
    bias = query.new_zeros((batch, 1, rows, keys), dtype=torch.float32) if mask is None else added(mask)
    more, rest = max(0, _ROWS - rows), -keys % CHUNK
    chunks, groups = (keys + rest) // CHUNK, batch * heads
    if more:
        query = pad(query, (0, 0, 0, more))
        bias = pad(bias, (0, 0, 0, more))
    if rest:
        key, value = pad(key, (0, 0, 0, rest)), pad(value, (0, 0, 0, rest))
        bias = pad(bias, (0, rest), value=-torch.inf)
    scores = torch.baddbmm(
        bias.expand(-1, heads, -1, -1).reshape(groups, rows + more, -1),
        query.float().reshape(groups, -1, size),
        key.float().reshape(groups, -1, size).transpose(1, 2),
        alpha=size**-0.5 if scale is None else scale,
    )
    weights = scores.softmax(dim=-1).view(groups, rows + more, chunks, CHUNK).transpose(1, 2)
    weights = weights.to(value.dtype, memory_format=torch.contiguous_format)
    attended = torch.bmm(weights.view(groups * chunks, -1, CHUNK), value.reshape(groups * chunks, CHUNK, -1))
    attended = attended.view(batch, heads, chunks, rows + more, -1).sum(dim=2, dtype=torch.float32)
    return attended[:, :, :rows].to(query.dtype)


def is_invariant(dtype: torch.dtype, device: torch.device) -> bool:
    """Return whether a token must get the same bits in all passes of this type on this device: in half precision, on a CPU.
    In float32 the differences are too small to decide a token. Asked once for each runner, by `grouped_attention`."""
    return dtype in (torch.bfloat16, torch.float16) and device.type == "cpu"
