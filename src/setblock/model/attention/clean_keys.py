"""Keep the keys and values of a clean half that was computed once, for the noisy tokens of a later pass to attend.

Knows attention modules and what they were given. Knows nothing of rows or blocks.
"""

from torch import Tensor, nn


class CleanKeys:
    """Keep keys and values that a pass over clean tokens computes, for passes over noisy ones to read.

    Not one of Transformers' caches: those are taken away from layers that are run again in the backward pass.
    """

    def __init__(self) -> None:
        self._states: dict[nn.Module, tuple[Tensor, Tensor]] = {}

    def keep(self, module: nn.Module, key: Tensor, value: Tensor) -> None:
        """Store what an attention module of a model computed for the clean tokens, [B, H', L, D] each."""
        self._states[module] = (key.detach(), value.detach())

    def of(self, module: nn.Module) -> tuple[Tensor, Tensor]:
        """Return what was stored for an attention module."""
        return self._states[module]
