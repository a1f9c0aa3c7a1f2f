"""What a request may set."""

import math
from dataclasses import dataclass
from typing import Literal

from setblock.errors import SetBlockError

Method = Literal["sbd", "ntp"]
METHODS: tuple[Method, ...] = ("sbd", "ntp")


@dataclass(frozen=True)
class DecodingSettings:
    """How one request is decoded.

    Attributes:
        method: `sbd`: blocks (Algorithm 3). `ntp`: one token a pass, by the same model and loop.
        block_size: k; None for the largest that the model was trained with, at most 16.
        max_new_tokens: the most tokens to generate, end-of-text included; None for what the context has room for, at most 256.
        temperature: 0 is greedy.
        seed: of the draws at a temperature above 0.
    """

    method: Method = "sbd"
    block_size: int | None = None
    max_new_tokens: int | None = None
    temperature: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.method not in METHODS:
            raise SetBlockError(f"method must be one of {', '.join(METHODS)}, not {self.method!r}")
        for name in ("block_size", "max_new_tokens"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise SetBlockError(f"{name} must be at least 1, not {value}")
        if not self.temperature >= 0 or math.isinf(self.temperature):
            raise SetBlockError(f"temperature must be a finite number of at least 0, not {self.temperature}")
        if not -(2**63) <= self.seed < 2**63:
            raise SetBlockError(f"seed must fit in 64 bits, not {self.seed}")
