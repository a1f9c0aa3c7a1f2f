"""Define how many bytes a number takes: of the weights, of the activations, of the cached keys and values."""

from dataclasses import dataclass
from typing import Literal, get_args

from setblock.errors import check_one_of

NumberType = Literal["float32", "bfloat16", "float16", "float8", "int8", "int4"]
BITS: dict[str, int] = {"float32": 32, "bfloat16": 16, "float16": 16, "float8": 8, "int8": 8, "int4": 4}
assert set(get_args(NumberType)) == set(BITS)


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Hold the types of a pass.

    Attributes:
        activations: of what flows between layers.
        weights: of the matrices, without the scales that come with integers (a few percent).
        kv: of the cached keys and values.
    """

    activations: str
    weights: str
    kv: str

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            check_one_of(f"type of {name}", value, BITS)

    @classmethod
    def of(cls, activations: str, *, weights: str | None = None, kv: str | None = None) -> "Precision":
        """Return a precision of one type, except for those that are named."""
        return cls(activations=activations, weights=weights or activations, kv=kv or activations)

    @property
    def weight_bytes(self) -> float:
        """Return the bytes of one weight."""
        return BITS[self.weights] / 8

    @property
    def activation_bytes(self) -> float:
        """Return the bytes of one activation."""
        return BITS[self.activations] / 8

    @property
    def kv_bytes(self) -> float:
        """Return the bytes of one number of a cached key or value."""
        return BITS[self.kv] / 8

    @property
    def linear_bits(self) -> int:
        """Return what linear layers compute in: the wider of the two, since narrow weights are widened on the way."""
        return max(BITS[self.weights], BITS[self.activations])

    @property
    def attention_bits(self) -> int:
        """Return what attention computes in: 16 bits at least, whatever the cache holds, as in the paper."""
        return max(16, BITS[self.activations])
