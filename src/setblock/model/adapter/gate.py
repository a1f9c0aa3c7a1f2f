"""Decide which tokens of a pass an adapter of the future block acts on.

Knows tokens. Knows nothing of what an adapter is: its layers ask here.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn

from setblock.errors import SetBlockError

_GATE = "_setblock_gate"


class Gate:
    """Hold which tokens of a pass the adapter of a model acts on. As long as nothing is said, it acts on none."""

    def __init__(self, model: nn.Module) -> None:
        self.set(None)
        setattr(model, _GATE, self)

    def set(self, tokens: Tensor | None, *, by_rows: bool = False) -> None:
        """Let the adapter act on the tokens of the next passes where `tokens` [B, T] is True, or on none, until it is said
        otherwise: with activation checkpointing, the backward pass runs layers again. `by_rows`: where some `tokens` on a CPU
        are True, what is before the first and after the last of these costs nothing."""
        self.is_open, self._rows = tokens is not None, slice(0, None)
        self._left_out = None if tokens is None else ~tokens.flatten()  # of `_rows`, [N] bool, or None for none
        self._tokens = None if tokens is None else tokens.numel()
        if tokens is not None and by_rows:
            places = tokens.flatten().nonzero()
            self._rows = slice(int(places[0]), int(places[-1]) + 1)
            has_gaps = len(places) < self._rows.stop - self._rows.start
            self._left_out = ~tokens.flatten()[self._rows] if has_gaps else None

    def open(self) -> None:
        """Let it act on all tokens of the next passes, until it is said otherwise."""
        self.set(None)
        self.is_open = True

    def rows(self, tokens: Tensor) -> Tensor:
        """Return the rows [n, D] of [..., D] that the adapter may act on: those of `gated` too, where n is less than all. Raise
        `SetBlockError` if they are not all tokens of the pass."""
        flat = tokens.flatten(0, -2)
        if self._tokens is not None and len(flat) != self._tokens:
            raise SetBlockError(
                "an adapter on noisy tokens only needs layers that see every token of a pass, and one sees a part"
            )
        return flat[self._rows]

    def gated(self, rows: Tensor) -> Tensor:
        """Return what `rows` gave, or was computed from that, with zeros for tokens that the adapter does not act on."""
        # Not a product: what is not a number stays so when multiplied by 0.
        return rows if self._left_out is None else rows.masked_fill(self._left_out[:, None], 0)


def gate_of(model: nn.Module) -> Gate | None:
    """Return the gate of a model whose adapter acts on some tokens only."""
    return getattr(model, _GATE, None)


@contextmanager
def block_only(model: nn.Module, in_block: Tensor, *, is_fixed: bool = False) -> Iterator[None]:
    """Make the adapter, if there is one, act where `in_block` [B, T] is True, in the future block. With `is_fixed` it does not
    look where that is: a pass without a block then costs what one with a block does."""
    gate = gate_of(model)
    # Where nothing is in a block, a pass is the base model's. Only a CPU can say so, and where it is, without a wait.
    by_rows = in_block.device.type == "cpu" and not is_fixed
    if gate is not None and (not by_rows or in_block.any()):
        gate.set(in_block, by_rows=by_rows)
    try:
        yield
    finally:
        if gate is not None:
            gate.set(None)
