"""Batch-invariant attention in half precision on a CPU: a query gets the same bits whatever else shares its pass.

Method `exact` compares the tokens of passes of different shapes: a plain pass feeds one token, a commit feeds k of them and a
block after them. In bfloat16 a logit keeps 8 bits, so that the last bit of a hidden state often determines a token, and kernels
whose order of summation depends on the shapes give different texts.

PyTorch's own kernel (SDPA) sums in one order on most CPUs if a call has a multiple of `ROWS` queries and whole chunks of keys.
Whether it does is tried once (`sdpa_keeps_bits`). Where it doesn't, every sum has a fixed order here:

    scores     q k^T in float32, of at least `_LEAST_ROWS` queries: the sum is over D, which is fixed, `_PART` at once
    weights    softmax in float32 over whole chunks of keys: what is masked adds exact zeros at the end
    values     one product for each chunk of `CHUNK` keys, then the sum over chunks, in order, in float32
"""

import torch
from torch import Tensor
from torch.nn.functional import pad, scaled_dot_product_attention

from setblock.masks import added

ROWS = 16
"""The queries of an SDPA call are a multiple of this: AMX computes 16 rows at once."""

_LEAST_ROWS, _ROWS_IN_ORDER = 4, 128
"""The least and the most queries of a float32 product. With fewer, its kernels sum in another order. With more, the scores
don't fit in the CPU's caches, which takes twice the time."""

CHUNK = 64
"""Keys whose values are summed by one product. The size is the same for every length of the cache. Keys in whole chunks, with a
mask of as many rows as the call, are not copied."""

_PART = 64
"""The most numbers that a float32 product sums. With more, the order of summation in Intel's kernels depends on the queries."""

_KEEPS_BITS: dict[tuple[torch.dtype, int], bool] = {}
"""Results of `sdpa_keeps_bits`, whose trial `torch.compile` can't trace."""


def invariant_attention(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, *, scale: float | None = None
) -> Tensor:
    """Return masked attention [B, H, R, D] of queries [B, H, R, D] over keys and values [B, H, K, D], all of one
    half-precision type. Every row must see at least one key.

    Args:
        mask: [B, 1, R, K], a bool mask of the keys that each query may see, or a bias added to the scores; None where all are
            seen. A mask may have more rows than there are queries, up to a multiple of `ROWS`: those of padding.
        scale: the factor of the scores; by default 1 / √D.
    """
    rows, size, keys = *query.shape[2:], key.shape[2]
    has_sdpa = value.shape[3] == size and _KEEPS_BITS.get((query.dtype, size), False)
    more, rest = -rows % ROWS if has_sdpa else max(0, _LEAST_ROWS - rows), -keys % CHUNK
    bias = query.new_zeros((1, 1, 1, keys)) if mask is None else mask
    if bias.dtype != query.dtype:
        bias = added(bias).to(query.dtype)
    if more:
        query = pad(query, (0, 0, 0, more))
        if 1 < bias.shape[2] < rows + more:
            bias = pad(bias, (0, 0, 0, more))
    if rest:
        key, value = pad(key, (0, 0, 0, rest)), pad(value, (0, 0, 0, rest))
        bias = pad(bias, (0, rest), value=-torch.inf)
    bias = bias[:, :, : rows + more].expand(-1, -1, rows + more, -1)
    scale = size**-0.5 if scale is None else scale
    if has_sdpa:
        return scaled_dot_product_attention(query, key, value, bias, scale=scale)[:, :, :rows]
    parts = -(-(rows + more) // _ROWS_IN_ORDER)  # parts of equal size, so that none has few rows
    pairs = zip(query.tensor_split(parts, dim=2), bias.tensor_split(parts, dim=2), strict=True)
    return torch.cat([_attention_in_order(each, key, value, of, scale=scale) for each, of in pairs], dim=2)[:, :, :rows]


def _attention_in_order(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, *, scale: float) -> Tensor:
    """Return `invariant_attention` for inputs padded to full rows and chunks."""
    batch, heads, rows, size = query.shape
    groups, chunks = batch * heads, key.shape[2] // CHUNK
    scores = bias.float().expand(batch, heads, -1, -1).reshape(groups, rows, -1)
    query, key = query.float().reshape(groups, -1, size), key.float().reshape(groups, -1, size)
    for start in range(0, size, _PART):
        part = slice(start, start + _PART)
        scores = torch.baddbmm(scores, query[..., part], key[..., part].transpose(1, 2), alpha=scale)
    weights = scores.softmax(dim=-1).view(groups, rows, chunks, CHUNK).transpose(1, 2)
    weights = weights.to(value.dtype, memory_format=torch.contiguous_format)
    attended = torch.bmm(weights.view(groups * chunks, -1, CHUNK), value.reshape(groups * chunks, CHUNK, -1))
    return attended.view(batch, heads, chunks, rows, -1).sum(dim=2, dtype=torch.float32).to(value.dtype)


def sdpa_keeps_bits(dtype: torch.dtype, size: int) -> bool:
    """Return whether SDPA on this CPU gives a query of D = `size` the same bits in every call of full rows and chunks.

    It is tried once, which takes some milliseconds. Queries that see 1, 2, ... chunks of keys run alone with their keys and all
    together, once and several times over, since kernels take more queries at once if there are more. The numbers are chosen
    so that sums cancel out and only rounding is left: in half of the heads that of the scores, q k^T, in the others that of the
    sum of values.
    """
    if (dtype, size) not in _KEEPS_BITS:
        numbers, most = torch.Generator().manual_seed(0), 11  # chunks: SDPA goes through 512 keys at a time
        keys, rows = most * CHUNK, most * ROWS

        def normal(*shape: int) -> Tensor:
            return torch.randn(shape, generator=numbers)

        half = (size + 1) // 2
        query = normal(1, 4, rows, half).repeat(1, 1, 1, 2)[..., :size] / 8
        large = (1024 * normal(1, 4, keys, half)).to(dtype).float()
        key = torch.cat([large, normal(1, 4, keys, half) - large], dim=-1)[..., :size]
        value = normal(1, 4, keys, size)
        pairs = torch.stack([CHUNK * chunk + torch.randperm(CHUNK, generator=numbers) for chunk in range(most)])
        ones, others = pairs.view(most, 2, -1).unbind(dim=1)
        key[:, 2:], value[:, 2:] = normal(1, 2, keys, size), 4096 * value[:, 2:]
        key[:, 2:, others], value[:, 2:, others] = key[:, 2:, ones], -value[:, 2:, ones]
        query, key, value = (each.to(dtype) for each in (query, key, value))
        sees = torch.arange(keys) < CHUNK * (1 + torch.arange(rows) // ROWS)[:, None]
        bias = added(sees).to(dtype)[None, None]
        with torch.inference_mode():
            apart = []
            for start, seen in zip(range(0, rows, ROWS), range(CHUNK, keys + 1, CHUNK), strict=True):
                each, of_each = query[:, :, start : start + ROWS], bias[:, :, start : start + ROWS, :seen]
                apart.append(scaled_dot_product_attention(each, key[:, :, :seen], value[:, :, :seen], of_each))
            found = torch.cat(apart, dim=2)
            _KEEPS_BITS[dtype, size] = all(
                torch.equal(
                    scaled_dot_product_attention(query.repeat(1, 1, n, 1), key, value, bias.repeat(1, 1, n, 1)),
                    found.repeat(1, 1, n, 1),
                )
                for n in (1, 2, 5)
            )
    return _KEEPS_BITS[dtype, size]
