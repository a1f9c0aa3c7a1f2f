"""Predict the time of a pass: each operation at the speed of memory or of arithmetic, whichever is slower (paper,
section 4).

Knows costs and hardware. What it gives is a lower bound for a machine that overlaps nothing between operations and all within
one, not a measurement.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from setblock.roofline.cost import Operation, Precision, bytes_of, pass_operations
from setblock.roofline.hardware import Hardware
from setblock.roofline.shape import ModelShape


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Predict passes of a model of these types on this hardware."""

    shape: ModelShape
    hardware: Hardware
    precision: Precision

    def seconds(self, tokens: int, *, batch: int, kv_length: int, outputs: int | None = None) -> float:
        """Return the seconds of one pass. The arguments are those of `pass_operations`; `outputs` are all tokens by default."""
        operations = self.operations(tokens, batch=batch, kv_length=kv_length, outputs=outputs)
        return sum(self.operation_seconds(operation) for operation in operations)

    def operations(self, tokens: int, *, batch: int, kv_length: int, outputs: int | None = None) -> Iterator[Operation]:
        """Return the operations of the pass, as `seconds` takes it."""
        outputs = tokens if outputs is None else outputs
        load = {"tokens": tokens, "batch": batch, "kv_length": kv_length, "outputs": outputs}
        return pass_operations(self.shape, self.precision, **load)

    def operation_seconds(self, operation: Operation) -> float:
        """Return the predicted seconds of one operation."""
        arithmetic = operation.flops / self.hardware.peak(operation.bits)
        return max(arithmetic, operation.bytes / self.hardware.bandwidth)

    def kv_memory(self, length: int) -> float:
        """Return the bytes that the cache of one request takes, all layers keeping every position."""
        return length * self.shape.kv_numbers * bytes_of(self.precision.kv)

    def batch_in_memory(self, length: int) -> int:
        """Return how many requests fit with the weights, activations left out."""
        weights = self.shape.parameters * bytes_of(self.precision.weights)
        return max(0, int((self.hardware.memory - weights) // self.kv_memory(length)))


def slowdown(prediction: Prediction, block_size: int, *, batch: int, kv_length: int) -> float:
    """Return the time of a block pass over that of a one-token pass (table 3)."""
    block = prediction.seconds(block_size, batch=batch, kv_length=kv_length)
    return block / prediction.seconds(1, batch=batch, kv_length=kv_length)


def block_speedup(prediction: Prediction, nfe_speedup: float, *, block_size: int, batch: int, kv_length: int) -> float:
    """Return the wall-clock speed-up over one token a pass (eq. 16; table 4), where blocks take `nfe_speedup` times fewer
    passes, in 1..`block_size`. A trained model's is to be measured."""
    one = prediction.seconds(1, batch=batch, kv_length=kv_length)
    block = prediction.seconds(block_size, batch=batch, kv_length=kv_length)
    # The fused pass computes the logits of its new block only
    fused = prediction.seconds(2 * block_size, batch=batch, kv_length=kv_length, outputs=block_size)
    return predicted_speedup(block_size / nfe_speedup, block_size=block_size, one_token=one, block=block, fused=fused)


def last_paying_batch(
    prediction: Prediction, nfe_speedup: float, *, block_size: int, kv_length: int, limit: int = 2**14
) -> int | None:
    """Return the largest batch at which blocks are faster than one token a pass: 0 where none is, and None where `limit` is.

    Takes it that above the last power of two that pays, they stop paying once and for all: compute, which blocks cost more of,
    can only gain in weight as a batch grows.
    """

    def pays(batch: int) -> bool:
        return block_speedup(prediction, nfe_speedup, block_size=block_size, batch=batch, kv_length=kv_length) > 1

    if pays(limit):
        return None
    powers = [2**i for i in range(limit.bit_length())]
    low = max(filter(pays, powers), default=0)
    larger = range(low + 1, max(2 * low, 1))
    return low + bisect_left(larger, True, key=lambda batch: not pays(batch))


def predicted_speedup(
    passes_per_block: float, *, block_size: int, one_token: float, block: float, fused: float
) -> float:
    """Return how many times faster than one token a pass a block is decoded (eq. 16).

        speedup(l, k) = k * time(1) / (time(2k) + (l - 1) * time(k))

    A block of k tokens costs one fused pass, which commits the block before it, and l - 1 passes over the block alone: l is
    `passes_per_block`, in 1..k, and k / l the NFE speed-up. time(1), time(k) and time(2k) are `one_token`, `block` and `fused`,
    in any one unit. Raise `ValueError` if l is not in 1..k, or a time is not positive.
    """
    if not 1 <= passes_per_block <= block_size:
        raise ValueError(f"passes_per_block must be in 1..{block_size} (the block size), not {passes_per_block}")
    if not min(one_token, block, fused) > 0:
        raise ValueError(f"times must be positive, not {one_token}, {block}, {fused}")
    return block_size * one_token / (fused + (passes_per_block - 1) * block)


BLOCK_SIZES = (2, 4, 8, 16, 32, 64)
NFE_SPEEDUPS = (2, 4, 8)
BATCHES = (1, 4, 8, 16, 32)
BLOCK_SIZE, KV_LENGTH = 16, 1024  # of table 4, and of both tables where nothing else is asked for


def tables(prediction: Prediction, *, kv_length: int, block_size: int) -> dict[str, dict[int, Any]]:
    """Return both tables, and where blocks stop paying: `slowdown` of a block pass, by batch and block size; `speedup` in
    seconds, by batch and NFE speed-up; `last_paying_batch`, by NFE speed-up. `block_size` is that of the last two, and NFE
    speed-ups that it can't give are left out."""
    at = {"kv_length": kv_length}
    nfes = [nfe for nfe in NFE_SPEEDUPS if nfe <= block_size]
    return {
        "slowdown": {b: {k: slowdown(prediction, k, batch=b, **at) for k in BLOCK_SIZES} for b in BATCHES},
        "speedup": {
            b: {n: block_speedup(prediction, n, block_size=block_size, batch=b, **at) for n in nfes} for b in BATCHES
        },
        "last_paying_batch": {n: last_paying_batch(prediction, n, block_size=block_size, **at) for n in nfes},
    }
