"""A Triton kernel for attention over pages. The module needs Triton; `TRITON_INTERPRET=1` runs it on a CPU.

One program attends G Q queries of a row, those of one key head, to a part of the row's keys, and so reads each key once for all
of them. The parts of all `SPLITS` programs are then added up. For names of sizes see `paged_attention`.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

_LEAST_SPLIT = 256  # keys of a program: with fewer, adding up costs more than it gains


@triton.jit
def _attend(
    query, keys, values, table, bounds, sums, tops, scale, softcap,
    stride_r, stride_h, stride_q, most,
    GROUPS: tl.constexpr, OF_GROUP: tl.constexpr, QUERIES: tl.constexpr, SIZE: tl.constexpr, PAGE: tl.constexpr,
    SPLITS: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr, WIDTH: tl.constexpr, IS_CAPPED: tl.constexpr,
):  # fmt: skip
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    group, part = tl.program_id(1) % GROUPS, tl.program_id(1) // GROUPS
    d = tl.arange(0, WIDTH)
    m = part * ROWS + tl.arange(0, ROWS)  # a row of queries: head m // Q of the group, query m % Q
    is_real = m < OF_GROUP * QUERIES

    # 1. The queries, and what they see
    head = group * OF_GROUP + m // QUERIES
    where_q = row * stride_r + head[:, None] * stride_h + (m % QUERIES)[:, None] * stride_q + d[None, :]
    q = tl.load(query + where_q, mask=is_real[:, None] & (d[None, :] < SIZE), other=0.0)
    of_query = bounds + (row * QUERIES + m % QUERIES) * 2
    first, limit = tl.load(of_query, mask=is_real, other=0), tl.load(of_query + 1, mask=is_real, other=0)
    end = tl.max(limit, axis=0)
    start = tl.min(tl.where(is_real, first, end), axis=0)  # those of any query

    # 2. This program's tiles of keys
    tiles = (end + KEYS - 1) // KEYS
    skipped = tl.minimum(start // KEYS, tiles)
    each = (tiles - skipped + SPLITS - 1) // SPLITS
    begun = skipped + split * each
    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    found = tl.zeros([ROWS, WIDTH], tl.float32)
    for tile in range(begun, tl.minimum(begun + each, tiles)):
        n = tile * KEYS + tl.arange(0, KEYS)
        inside = n < end  # other rows may have left NaN behind it
        page = tl.load(table + row * most + n // PAGE, mask=inside, other=0).to(tl.int64)
        slot = ((page * PAGE + n % PAGE) * GROUPS + group) * SIZE
        is_key = inside[:, None] & (d[None, :] < SIZE)
        k = tl.load(keys + slot[:, None] + d[None, :], mask=is_key, other=0.0)  # [KEYS, WIDTH]
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * scale
        if IS_CAPPED:
            scores = softcap * (2.0 * tl.sigmoid(2.0 * scores / softcap) - 1.0)  # tanh
        seen = (n[None, :] >= first[:, None]) & (n[None, :] < limit[:, None])
        scores = tl.where(seen, scores, -float("inf"))
        higher = tl.maximum(top, tl.max(scores, axis=1))
        base = tl.where(higher == -float("inf"), 0.0, higher)  # of a query that has seen nothing yet
        weights, kept = tl.exp(scores - base[:, None]), tl.exp(top - base)
        v = tl.load(values + slot[:, None] + d[None, :], mask=is_key, other=0.0)
        found = found * kept[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        total = total * kept + tl.sum(weights, axis=1)
        top = higher

    # 3. Its sum, with the greatest score and the sum of weights. Where it saw no key, the sum is neither written nor read
    place = ((row * GROUPS + group) * SPLITS + split) * OF_GROUP * QUERIES + m
    is_written = tl.where(total > 0.0, m, OF_GROUP * QUERIES) < OF_GROUP * QUERIES
    is_written = is_written[:, None] & (d[None, :] < SIZE)
    tl.store(sums + place[:, None] * SIZE + d[None, :], found, mask=is_written)
    tl.store(tops + place * 2, top, mask=is_real)
    tl.store(tops + place * 2 + 1, total, mask=is_real)


@triton.jit
def _add_up(
    sums, tops, sinks, out,
    GROUPS: tl.constexpr, OF_GROUP: tl.constexpr, QUERIES: tl.constexpr, SIZE: tl.constexpr,
    SPLITS: tl.constexpr, WIDTH: tl.constexpr, HAS_SINKS: tl.constexpr,
):  # fmt: skip
    row, head, q = tl.program_id(0).to(tl.int64), tl.program_id(1) // QUERIES, tl.program_id(1) % QUERIES
    d = tl.arange(0, WIDTH)
    first = (row * GROUPS + head // OF_GROUP) * SPLITS * OF_GROUP * QUERIES + head % OF_GROUP * QUERIES + q
    top = -float("inf")
    for split in range(SPLITS):
        top = tl.maximum(top, tl.load(tops + (first + split * OF_GROUP * QUERIES) * 2))
    sink = -float("inf")
    if HAS_SINKS:
        sink = tl.load(sinks + head).to(tl.float32)
    top = tl.maximum(top, sink)
    base = tl.where(top == -float("inf"), 0.0, top)
    total, found = tl.exp(sink - base), tl.zeros([WIDTH], tl.float32)
    for split in range(SPLITS):
        place = first + split * OF_GROUP * QUERIES
        weight, part = tl.exp(tl.load(tops + place * 2) - base), tl.load(tops + place * 2 + 1)
        total += weight * part
        found += weight * tl.load(sums + place * SIZE + d, mask=tl.where(part > 0.0, d, SIZE) < SIZE, other=0.0)
    found = found / tl.where(total == 0.0, 1.0, total)  # zeros where nothing is seen
    where_out = (row * QUERIES + q) * GROUPS * OF_GROUP + head
    tl.store(out + where_out * SIZE + d, found.to(out.dtype.element_ty), mask=d < SIZE)


def attend_pages(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    page_table: Tensor,
    bounds: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
    sinks: Tensor | None = None,
) -> Tensor:
    """Return attention [R, Q, H, D] of a query [R, H, Q, D] to pages [P, page, H', D], which are contiguous, with the page
    table [R, M] int32 and the `bounds` [R, 1, Q, 2] int32 of `PagedInput.bounds`. Other arguments are those of
    `paged_attention.Scores`."""
    (rows, heads, queries, size), (_, page, groups, _) = query.shape, keys.shape
    assert keys.shape == values.shape and keys.is_contiguous() and values.is_contiguous()
    query = query if query.stride(-1) == 1 else query.contiguous()
    of_group = heads // groups
    # A program's query rows, and keys of a tile: fewer of large heads, for which there would be too few registers
    width = max(16, triton.next_power_of_2(size))
    row_count = min(128 if width <= 128 else 64, max(16, triton.next_power_of_2(of_group * queries)))
    tile = 64 if width * keys.itemsize <= 256 else 32
    parts = triton.cdiv(of_group * queries, row_count)
    capacity = page_table.shape[1] * page  # keys of a row
    splits = max(1, min(triton.cdiv(capacity, _LEAST_SPLIT), _processors(query.device) // (rows * groups * parts)))
    sums = query.new_empty((rows, groups, splits, of_group * queries, size), dtype=torch.float32)
    tops = query.new_empty((rows, groups, splits, of_group * queries, 2), dtype=torch.float32)
    out = query.new_empty((rows, queries, heads, size))
    sizes = {"GROUPS": groups, "OF_GROUP": of_group, "QUERIES": queries, "SIZE": size, "SPLITS": splits}
    _attend[rows, groups * parts, splits](
        query, keys, values, page_table.contiguous(), bounds.contiguous(), sums, tops, scale,
        1.0 if softcap is None else softcap,
        *query.stride()[:3], page_table.shape[1],
        **sizes, PAGE=page, ROWS=row_count, KEYS=tile, WIDTH=width, IS_CAPPED=softcap is not None,
        num_warps=4 if row_count <= 64 else 8,
    )  # fmt: skip
    has_sinks = sinks is not None
    _add_up[rows, heads * queries](
        sums, tops, sinks if has_sinks else tops, out, **sizes, WIDTH=width, HAS_SINKS=has_sinks
    )
    return out


def _processors(device: torch.device) -> int:
    """Return the number of a GPU's multiprocessors; of a CPU, where the kernel is interpreted, a number that splits keys."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 32
