"""A Triton kernel that reads a vocabulary's logits once. The module needs Triton; `TRITON_INTERPRET=1` runs it on a CPU.

From one reading it gives what PyTorch's operations read the logits several times for: the most likely token and its logit, the
entropy, the confidence, and the token that is drawn. One program reads one tile of a position's logits. A tile's numbers are
then added up with those of the others, by PyTorch: they are few.

A token's score depends on its own logit, its row's temperature and the noise's keys alone. Tiles have one size, and products
are never fused with sums (`enable_fp_fusion`). So what is chosen at a position depends neither on the rest of the batch nor on
the kind of pass.
"""

import torch
import triton
import triton.language as tl
from torch import Tensor

from setblock.decoding.step.certainty import Certainty
from setblock.decoding.step.logits import MostLikely, Reading
from setblock.devices import current

_TILE = 4096  # tokens of a program


@triton.jit
def _mix(z):  # `choice._mix`; shifts of uint64 are logical
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB
    return z ^ (z >> 31)


@triton.jit
def _exponential(uniform):  # -log1p(-u), which the interpreter lacks: the quotient makes up for what 1 - u rounds off
    rest = 1.0 - uniform
    taken = 1.0 - rest
    found = -tl.log(rest) * (uniform / tl.where(taken == 0.0, 1.0, taken))
    return tl.where(taken == 0.0, uniform, found)


@triton.jit
def _read_tile(
    logits, temperatures, seeds, positions, numbers, token_ids, stride_b, stride_n, count, vocab_size, TILE: tl.constexpr
):  # fmt: skip
    at, tile, tiles = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    row, place = at // count, at % count
    token = tile * TILE + tl.arange(0, TILE)
    where_x = row * stride_b + place * stride_n + token
    x = tl.load(logits + where_x, mask=token < vocab_size, other=-float("inf"))

    # 1. The most likely token, the smallest of a tie; and as in `certainty`, the sums of w = exp(d) and of w d, d = x - base
    top, best = tl.max(x, axis=0, return_indices=True)
    base = tl.where(tl.abs(top) < float("inf"), top, 0.0)
    d = x - base
    d = tl.where(d < -1e4, -1e4, d)  # of a banned token's -inf, w d would not be a number
    weights = tl.exp(d)
    total, product = tl.sum(weights, axis=0), tl.sum(weights * d, axis=0)
    top = tl.where(total == total, top, float("nan"))  # if any logit is NaN, so is the greatest

    # 2. The token that is drawn, with the noise of `choice.choose_tokens`
    score, drawn = top, best
    temperature = tl.load(temperatures + row)
    if temperature > 0:
        temperature = tl.minimum(tl.maximum(temperature, 1e-6), 1e30)
        key = _mix(tl.load(seeds + row).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15)
        key = _mix(key + tl.load(positions + at).to(tl.uint64, bitcast=True) + 0x9E3779B97F4A7C15)
        bits = _mix(key + token.to(tl.uint64) + 0x9E3779B97F4A7C15)
        uniform = tl.minimum(((bits >> 1).to(tl.float32) + 0.5) * 1.0842021724855044e-19, 1 - 2.0**-24)  # 2^-63
        scores = tl.div_rn(x, tl.full([TILE], temperature, tl.float32)) - tl.log(_exponential(uniform))
        score, drawn = tl.max(scores, axis=0, return_indices=True)

    out = at * tiles + tile
    tl.store(numbers + out * 4, top)
    tl.store(numbers + out * 4 + 1, total)
    tl.store(numbers + out * 4 + 2, product)
    tl.store(numbers + out * 4 + 3, score)
    tl.store(token_ids + out * 2, tile * TILE + best)
    tl.store(token_ids + out * 2 + 1, tile * TILE + drawn)


def read_by_kernel(logits: Tensor, temperatures: Tensor, seeds: Tensor, positions: Tensor) -> Reading:
    """Return all that choosing tokens needs of logits [B, n, V] float32, given each row's temperature [B] float32 and seed [B]
    int64, and the positions [B, n] int64. Where the temperature is 0, the chosen token is the most likely one."""
    (rows, count, vocab_size), tiles = logits.shape, triton.cdiv(logits.shape[-1], _TILE)
    assert logits.dtype == torch.float32
    logits = logits if logits.stride(-1) == 1 else logits.contiguous()
    numbers = logits.new_empty((rows, count, tiles, 4))
    token_ids = positions.new_empty((rows, count, tiles, 2))
    with current(logits.device):
        _read_tile[rows * count, tiles](
            logits, temperatures.contiguous(), seeds.contiguous(), positions.contiguous(), numbers, token_ids,
            *logits.stride()[:2], count, vocab_size, TILE=_TILE, num_warps=8, enable_fp_fusion=False,
        )  # fmt: skip
    token_ids.clamp_(max=vocab_size - 1)  # of NaN, the greatest may be found behind the last token
    tops, totals, products, scores = numbers.unbind(dim=-1)  # [B, n, tiles] each
    greatest, in_tile = tops.max(dim=-1)  # the first of a tie
    best = token_ids[..., 0].gather(-1, in_tile[..., None])[..., 0]
    chosen = token_ids[..., 1].gather(-1, scores.argmax(dim=-1, keepdim=True))[..., 0]
    below = (tops - greatest[..., None]).clamp(min=-1e4)  # what each tile's base is below the greatest
    weights = below.exp()
    total = (totals * weights).sum(dim=-1)
    product = ((products + totals * below) * weights).sum(dim=-1)
    certainty = Certainty(entropy=total.log() - product / total, confidence=total.reciprocal())
    return Reading(MostLikely(greatest, best), certainty, chosen)
