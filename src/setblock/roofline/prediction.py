"""The predicted time of a pass: each operation at the speed of memory or of arithmetic, whichever is slower (paper, section 4).

It is a lower bound, not a measurement, for a machine that overlaps memory and arithmetic within an operation but not operations
with each other. `LEFT_OUT` lists what is left out.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from setblock.errors import check_one_of
from setblock.roofline.hardware import Hardware
from setblock.roofline.shape import LayerShape, ModelShape

NumberType = Literal["float32", "bfloat16", "float16", "float8", "int8", "int4"]
BITS: dict[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16, "float8": 8, "int8": 8, "int4": 4}
BYTES = {name: bits / 8 for name, bits in BITS.items()}  # bytes of one number, by type
assert set(get_args(NumberType)) == set(BITS)


@dataclass(frozen=True, kw_only=True)
class Precision:
    """The number types of a pass."""

    activations: str  # of the hidden states between layers
    weights: str  # of the matrices, without the scales that come with integers (a few percent)
    kv: str  # of the cached keys and values

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_one_of(f"type of {name}", value, BITS)

    @classmethod
    def of(cls, activations: str, *, weights: str | None = None, kv: str | None = None) -> "Precision":
        """Return a precision of one type for everything, except for the types that are given."""
        return cls(activations=activations, weights=weights or activations, kv=kv or activations)

    @property
    def linear_bits(self) -> int:
        """The bits in which linear layers compute: those of the wider type, since narrower weights are converted first."""
        return max(BITS[self.weights], BITS[self.activations])

    @property
    def attention_bits(self) -> int:
        """The bits in which attention computes: at least 16, whatever the type of the cache, as in the paper."""
        return max(16, BITS[self.activations])


LEFT_OUT = (
    "embedding look-up, norms, biases, rotary positions, softmax, activation functions and residual sums",
    "launches of kernels, Python, the sampler, copies between host and device",
    "what caches on the chip save, and how far kernels stay below the peaks",
    "scales of quantised weights, and widening them",
    "communication between devices: the model is on one",
)


@dataclass(frozen=True, kw_only=True)
class Operation:
    """One operation of a pass, summed over all layers with the same sizes."""

    name: str
    flops: float  # floating-point operations; a multiplication and an addition are two
    weight_bytes: float = 0  # of weights read from memory
    activation_bytes: float  # of inputs read and outputs written
    kv_bytes: float = 0  # of cached keys and values read
    bits: int  # of the numbers in which it computes


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """A predictor of the passes of a model with given number types on given hardware."""

    shape: ModelShape
    hardware: Hardware
    precision: Precision

    def seconds(self, tokens: int, *, batch: int, kv_length: int, outputs: int | None = None) -> float:
        """Return the seconds of one pass. The arguments are those of `operations`."""
        operations = self.operations(tokens, batch=batch, kv_length=kv_length, outputs=outputs)
        return sum(self.operation_seconds(operation) for operation in operations)

    def operation_seconds(self, operation: Operation) -> float:
        """Return the predicted seconds of one operation."""
        moved = operation.weight_bytes + operation.activation_bytes + operation.kv_bytes
        return max(operation.flops / self.hardware.peak(operation.bits), moved / self.hardware.bandwidth)

    def operations(self, tokens: int, *, batch: int, kv_length: int, outputs: int | None = None) -> Iterator[Operation]:
        """Yield the operations of one pass.

        Args:
            tokens: fed for each request: 1, k, or 2k in the fused pass.
            batch: requests.
            kv_length: positions that each request has in its cache before the pass.
            outputs: positions of each request whose logits are computed: k in a block pass and in the fused one; None for all.
        """
        shape, rows = self.shape, batch * tokens
        width = shape.head_dim * shape.heads
        kv_width = shape.head_dim * shape.kv_heads
        for layer in shape.layers:
            yield self._linear("queries", rows, shape.hidden, width, layer.count)
            yield self._linear("keys and values", rows, shape.hidden, kv_width, 2 * layer.count)
            seen = tokens + (kv_length if layer.window is None else min(kv_length, layer.window - 1))
            yield Operation(
                name="attention",
                flops=4 * layer.count * rows * seen * width,  # scores, and the sum of values: two products
                activation_bytes=layer.count * 2 * rows * width * BYTES[self.precision.activations],
                kv_bytes=layer.count * 2 * batch * seen * kv_width * BYTES[self.precision.kv],
                bits=self.precision.attention_bits,
            )
            yield self._linear("attention output", rows, width, shape.hidden, layer.count)
            yield from self._feed_forward(layer, rows)
        if shape.vocabulary:
            outputs = tokens if outputs is None else outputs
            yield self._linear("LM head", batch * outputs, shape.hidden, shape.vocabulary, 1)

    def _feed_forward(self, layer: LayerShape, rows: int) -> Iterator[Operation]:
        hidden = self.shape.hidden
        up_name, ups = ("gate and up", 2) if self.shape.gated else ("up", 1)
        if layer.experts:
            read, chosen = experts_read(layer, rows), rows * layer.active_experts
            yield self._linear("router", rows, hidden, layer.experts, layer.count)
            yield self._linear(f"experts' {up_name}", chosen, hidden, layer.width, ups * layer.count, copies=read)
            yield self._linear("experts' down", chosen, layer.width, hidden, layer.count, copies=read)
        dense = layer.shared_width if layer.experts else layer.width
        if dense:
            yield self._linear(up_name, rows, hidden, dense, ups * layer.count)
            yield self._linear("down", rows, dense, hidden, layer.count)

    def _linear(self, name: str, rows: int, inner: int, outer: int, count: int, *, copies: float = 1) -> Operation:
        """Return the operation of `count` products of [rows, inner] by [inner, outer], each read from and written to memory;
        each has `copies` sets of weights."""
        return Operation(
            name=name,
            flops=2 * count * rows * inner * outer,
            weight_bytes=count * copies * inner * outer * BYTES[self.precision.weights],
            activation_bytes=count * rows * (inner + outer) * BYTES[self.precision.activations],
            bits=self.precision.linear_bits,
        )

    def kv_memory(self, length: int) -> float:
        """Return the bytes of one request's cache of `length` positions, if all layers keep every position."""
        shape = self.shape
        numbers = 2 * sum(layer.count for layer in shape.layers) * shape.kv_heads * shape.head_dim  # of one position
        return length * numbers * BYTES[self.precision.kv]

    def batch_in_memory(self, length: int) -> int:
        """Return the number of requests whose caches fit in memory besides the weights, without activations."""
        weights = self.shape.parameters * BYTES[self.precision.weights]
        return max(0, int((self.hardware.memory - weights) // self.kv_memory(length)))


def experts_read(layer: LayerShape, rows: int) -> float:
    """Return the expected number of a layer's experts that `rows` tokens use together, if each draws its experts uniformly and
    independently.

    Real routers are less uniform, and tokens of one block more similar, so that fewer experts are read.
    """
    return layer.experts * (1 - (1 - layer.active_experts / layer.experts) ** rows)


def slowdown(prediction: Prediction, block_size: int, *, batch: int, kv_length: int) -> float:
    """Return the time of a block pass over that of a one-token pass (table 3)."""
    block = prediction.seconds(block_size, batch=batch, kv_length=kv_length)
    return block / prediction.seconds(1, batch=batch, kv_length=kv_length)


def block_speedup(prediction: Prediction, nfe_speedup: float, *, block_size: int, batch: int, kv_length: int) -> float:
    """Return the wall-clock speed-up over one token a pass (eq. 16; table 4) if blocks take `nfe_speedup` times fewer passes,
    in 1..`block_size`. For a trained model that number must be measured."""
    one = prediction.seconds(1, batch=batch, kv_length=kv_length)
    block = prediction.seconds(block_size, batch=batch, kv_length=kv_length)
    # The fused pass computes the logits of its new block only
    fused = prediction.seconds(2 * block_size, batch=batch, kv_length=kv_length, outputs=block_size)
    return predicted_speedup(block_size / nfe_speedup, block_size=block_size, one_token=one, block=block, fused=fused)


def last_paying_batch(
    prediction: Prediction, nfe_speedup: float, *, block_size: int, kv_length: int, limit: int = 2**14
) -> int | None:
    """Return the largest batch at which blocks are faster than one token a pass: 0 if none is, and None if `limit` still is.

    The search assumes that blocks never pay again above the last power of two at which they do: the share of compute, of which
    blocks need more, only grows with the batch.
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
    """Return the speed-up of decoding a block over one token a pass (eq. 16).

        speedup(l, k) = k * time(1) / (time(2k) + (l - 1) * time(k))

    A block of k tokens costs one fused pass, which also commits the previous block, and l - 1 passes over the block alone. Here
    l is `passes_per_block`, in 1..k, and k / l is the NFE speed-up. time(1), time(k) and time(2k) are `one_token`, `block` and
    `fused`, in any one unit. Raise `ValueError` if l is not in 1..k, or a time is not positive.
    """
    if not 1 <= passes_per_block <= block_size:
        raise ValueError(f"passes_per_block must be in 1..{block_size} (the block size), not {passes_per_block}")
    if not min(one_token, block, fused) > 0:
        raise ValueError(f"times must be positive, not {one_token}, {block}, {fused}")
    return block_size * one_token / (fused + (passes_per_block - 1) * block)


BLOCK_SIZES = (2, 4, 8, 16, 32, 64)
NFE_SPEEDUPS = (2, 4, 8)
BATCHES = (1, 4, 8, 16, 32)
BLOCK_SIZE, KV_LENGTH = 16, 1024  # of table 4, and the defaults of both tables


def prediction_json(prediction: Prediction, *, kv_length: int, block_size: int) -> dict[str, Any]:
    """Return a prediction as a JSON object: the `slowdown` of a block pass, by batch and block size; the wall-clock `speedup`,
    by batch and NFE speed-up; and the `last_paying_batch`, by NFE speed-up. `block_size` applies to the last two, and NFE
    speed-ups that it can't reach are left out."""
    shape, at = prediction.shape, {"kv_length": kv_length}
    nfes = [nfe for nfe in NFE_SPEEDUPS if nfe <= block_size]
    return {
        **at,
        "block_size": block_size,
        "slowdown": {b: {k: slowdown(prediction, k, batch=b, **at) for k in BLOCK_SIZES} for b in BATCHES},
        "speedup": {
            b: {n: block_speedup(prediction, n, block_size=block_size, batch=b, **at) for n in nfes} for b in BATCHES
        },
        "last_paying_batch": {n: last_paying_batch(prediction, n, block_size=block_size, **at) for n in nfes},
        "batch_in_memory": prediction.batch_in_memory(kv_length),
        "operations": {
            tokens: [
                {**asdict(operation), "seconds": prediction.operation_seconds(operation)}
                for operation in prediction.operations(tokens, batch=1, **at)
            ]
            for tokens in (1, block_size)
        },
        "model": {**asdict(shape), "parameters": shape.parameters, "active_parameters": shape.active_parameters},
        "hardware": asdict(prediction.hardware),
        "precision": asdict(prediction.precision),
        "left_out": list(LEFT_OUT),
    }
