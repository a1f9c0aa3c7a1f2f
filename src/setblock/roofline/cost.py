"""Count what one pass costs: operations and bytes, each under its name.

Knows shapes and types. Knows nothing of machines. What it leaves out is in `LEFT_OUT`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from setblock.errors import check_one_of
from setblock.roofline.shape import LayerShape, ModelShape

NumberType = Literal["float32", "bfloat16", "float16", "float8", "int8", "int4"]
BITS: dict[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16, "float8": 8, "int8": 8, "int4": 4}
assert set(get_args(NumberType)) == set(BITS)


def bytes_of(number_type: str) -> float:
    """Return the bytes of one number."""
    return BITS[number_type] / 8


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Hold the types of a pass."""

    activations: str  # of what flows between layers
    weights: str  # of the matrices, without the scales that come with integers (a few percent)
    kv: str  # of the cached keys and values

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_one_of(f"type of {name}", value, BITS)

    @classmethod
    def of(cls, activations: str, *, weights: str | None = None, kv: str | None = None) -> "Precision":
        """Return a precision of one type, except for those that are named."""
        return cls(activations=activations, weights=weights or activations, kv=kv or activations)

    @property
    def linear_bits(self) -> int:
        """Return what linear layers compute in: the wider of the two, since narrow weights are widened on the way."""
        return max(BITS[self.weights], BITS[self.activations])

    @property
    def attention_bits(self) -> int:
        """Return what attention computes in: 16 bits at least, whatever the cache holds, as in the paper."""
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
    """Describe one operation of a pass, over all layers that do it alike."""

    name: str
    flops: float  # floating-point operations; a multiplication and an addition are two
    weight_bytes: float  # of weights read from memory
    activation_bytes: float  # of inputs read and outputs written
    kv_bytes: float  # of cached keys and values read
    bits: int  # of the numbers it computes in

    @property
    def bytes(self) -> float:
        """Return all bytes that are moved."""
        return self.weight_bytes + self.activation_bytes + self.kv_bytes


def pass_operations(
    shape: ModelShape, precision: Precision, *, tokens: int, batch: int, kv_length: int, outputs: int
) -> Iterator[Operation]:
    """Yield the operations of one pass.

    Args:
        tokens: fed for each request: 1, k, or 2k in the fused pass.
        batch: requests.
        kv_length: positions that each request has in its cache before the pass.
        outputs: positions of each request whose logits are computed: k in a block pass and in the fused one.
    """
    rows = batch * tokens
    width = shape.head_dim * shape.heads
    kv_width = shape.head_dim * shape.kv_heads
    for layer in shape.layers:
        yield _linear("queries", rows, shape.hidden, width, layer.count, precision)
        yield _linear("keys and values", rows, shape.hidden, kv_width, 2 * layer.count, precision)
        seen = tokens + (kv_length if layer.window is None else min(kv_length, layer.window - 1))
        yield Operation(
            name="attention",
            flops=4 * layer.count * rows * seen * width,  # scores, and the sum of values: two products
            weight_bytes=0,
            activation_bytes=layer.count * 2 * rows * width * bytes_of(precision.activations),
            kv_bytes=layer.count * 2 * batch * seen * kv_width * bytes_of(precision.kv),
            bits=precision.attention_bits,
        )
        yield _linear("attention output", rows, width, shape.hidden, layer.count, precision)
        yield from _feed_forward(shape, layer, rows, precision)
    if shape.vocabulary:
        yield _linear("LM head", batch * outputs, shape.hidden, shape.vocabulary, 1, precision)


def experts_read(layer: LayerShape, rows: int) -> float:
    """Return how many of a layer's experts `rows` tokens need together, if each draws its own evenly and independently.

    Real routers are less even, and tokens of one block more alike: fewer are read.
    """
    return layer.experts * (1 - (1 - layer.active_experts / layer.experts) ** rows)


def _feed_forward(shape: ModelShape, layer: LayerShape, rows: int, precision: Precision) -> Iterator[Operation]:
    hidden, up_name, ups = shape.hidden, "gate and up" if shape.gated else "up", 2 if shape.gated else 1
    if layer.experts:
        read, chosen = experts_read(layer, rows), rows * layer.active_experts
        yield _linear("router", rows, hidden, layer.experts, layer.count, precision)
        yield _linear(f"experts' {up_name}", chosen, hidden, layer.width, ups * layer.count, precision, copies=read)
        yield _linear("experts' down", chosen, layer.width, hidden, layer.count, precision, copies=read)
    dense = layer.shared_width if layer.experts else layer.width
    if dense:
        yield _linear(up_name, rows, hidden, dense, ups * layer.count, precision)
        yield _linear("down", rows, dense, hidden, layer.count, precision)


def _linear(
    name: str, rows: int, inner: int, outer: int, count: int, precision: Precision, *, copies: float = 1
) -> Operation:
    """Return `count` products of [rows, inner] by [inner, outer], each from memory and to it; each has `copies` sets of
    weights."""
    return Operation(
        name=name,
        flops=2 * count * rows * inner * outer,
        weight_bytes=count * copies * inner * outer * bytes_of(precision.weights),
        activation_bytes=count * rows * (inner + outer) * bytes_of(precision.activations),
        kv_bytes=0,
        bits=precision.linear_bits,
    )
