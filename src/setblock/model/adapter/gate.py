"""Decide which tokens of a pass an adapter of the future block acts on.

Knows tokens. Knows nothing of what an adapter is: its layers ask here.
"""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from torch import Tensor, nn

from setblock.errors import SetBlockError

_GATE = "_setblock_gate"


class Gate:
    """Hold which tokens of a pass the adapter of a model acts on. As long as nothing is said, it acts on none."""

    def __init__(self, model: nn.Module) -> None:
        """Become the gate of a model."""
        self.is_open = False
        self._left_out: Tensor | None = None  # [B, T] bool; None where there are none
        setattr(model, _GATE, self)

    def set(self, tokens: Tensor | None) -> None:
        """Let the adapter act on the tokens of the next passes where `tokens` [B, T] is True, or on none.

        Stays so until it is said otherwise: with activation checkpointing, the backward pass runs layers again.
        """
        self.is_open, self._left_out = tokens is not None, None if tokens is None else ~tokens

    def open(self) -> None:
        """Let it act on all tokens of the next passes, until it is said otherwise."""
        self.is_open, self._left_out = True, None

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Act on none for a while."""
        before = self.is_open, self._left_out
        self.set(None)
        try:
            yield
        finally:
            self.is_open, self._left_out = before

    @contextmanager
    def open_at(self, tokens: Tensor) -> Iterator[None]:
        """Open the gate as `set` does, for a while."""
        self.set(tokens)
        try:
            yield
        finally:
            self.set(None)

    def gated(self, update: Tensor) -> Tensor:
        """Return an update with zeros for tokens that the adapter does not act on.

        Args:
            update: [B, T, ...] or, where a layer sees its tokens in a row, [B * T, ...].

        Raises:
            SetBlockError: they are not all tokens of the pass.
        """
        if self._left_out is None:
            return update
        if update.shape[:-1].numel() != self._left_out.numel():
            raise SetBlockError(
                "an adapter on noisy tokens only needs layers that see every token of a pass, and one sees a part"
            )
        # Not a product: what is not a number stays so when multiplied by 0.
        return update.masked_fill(self._left_out.reshape(*update.shape[:-1], 1), 0)


def gate_of(model: nn.Module) -> Gate | None:
    """Return the gate of a model whose adapter acts on some tokens only."""
    return getattr(model, _GATE, None)


def block_only(model: nn.Module, in_block: Tensor, *, is_fixed: bool = False) -> AbstractContextManager[None]:
    """Make the adapter, if there is one, act where `in_block` [B, T] is True, in the future block.

    Args:
        is_fixed: don't look whether it is True anywhere. A pass where it is not then costs what one with a block does.
    """
    gate = gate_of(model)
    # Where nothing is in a block, a pass is the base model's. Only a CPU can say so without a wait.
    if gate is None or (not is_fixed and in_block.device.type == "cpu" and not in_block.any()):
        return nullcontext()
    return gate.open_at(in_block)
