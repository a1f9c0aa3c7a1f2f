"""What the host decides of a pass before it: how far each row is fed, and how large the pass's tensors are.

Knows numbers of rows and positions. Knows nothing of what is in them. All that the host must learn from the device for a pass
it learns here, at once, in `next_spans`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.state import BatchState


@dataclass(frozen=True)
class Span:
    """What a row's next pass feeds.

    Attributes:
        start, end: the positions, `end` not included; equal where the row is fed nothing.
        block_start: those from here on are fed as a block, those before it causally.
        is_prefill: whether it may be cut.
    """

    start: int
    end: int
    block_start: int
    is_prefill: bool

    @property
    def tokens(self) -> int:
        """How many tokens that is."""
        return self.end - self.start


def next_spans(state: BatchState, *, fuses_commit: bool) -> list[Span]:
    """What the next pass feeds each row, if it is not cut short; nothing where it has ended. Waits for the device."""
    end = state.next_end(fuses_commit=fuses_commit)
    rows = torch.stack((state.committed, end, state.block_start, state.prefill_end), dim=1).tolist()
    return [
        Span(start, end, block_start, is_prefill=start < min(end, prefill_end))
        for start, end, block_start, prefill_end in rows
    ]


@dataclass(frozen=True)
class PassPlan:
    """A pass before it is fed.

    Attributes:
        end: [B] int64, the position up to which each row is fed; where it stands if it takes no part.
        is_prefill: [B] bool, rows whose pass is over their prompt, or over what they had to give up.
        part: the A rows that are fed.
        queries: Q, tokens that are fed in each row.
        checked: m, outputs of each row at which drafts are checked.
        keys: the position past the last that any row sees.
        is_fixed: whether sizes are the same in every pass of a kind, at the price of padding.
    """

    end: Tensor
    is_prefill: Tensor
    part: "Part"
    queries: int
    checked: int
    keys: int
    is_fixed: bool


def plan_pass(state: BatchState, spans: Sequence[Span], *, fixed_keys: int | None) -> PassPlan:
    """The plan of a pass over `spans`, at least one of which feeds something. Does not wait for the device.

    Args:
        fixed_keys: as a `Runner` has it. Prompts have lengths of all kinds, so sizes of their passes are never fixed.
    """
    fed = [row for row, span in enumerate(spans) if span.tokens]
    queries = max(span.tokens for span in spans)
    drafted = [
        span.block_start - span.start - 1
        for span, terms in zip(spans, state.terms, strict=True)
        if terms.method == "exact" and span.tokens and not span.is_prefill
    ]
    checked, keys = max([0, *drafted]), max(spans[row].end for row in fed)
    is_fixed = fixed_keys is not None and not any(span.is_prefill for span in spans)
    if is_fixed:
        assert fixed_keys is not None
        queries, checked = fixed_sizes(queries, checked, block_size=state.block_width)
        fed, keys = list(range(state.batch)), fixed_keys
    device = state.tokens.device
    return PassPlan(
        end=torch.tensor([span.end for span in spans], device=device),
        is_prefill=torch.tensor([span.is_prefill for span in spans], device=device),
        part=Part(torch.tensor(fed, device=device), batch=state.batch),
        queries=queries,
        checked=checked,
        keys=keys,
        is_fixed=is_fixed,
    )


def fixed_sizes(queries: int, checked: int, *, block_size: int) -> tuple[int, int]:
    """Queries and checked outputs of few sizes: a block, or a block that is committed and the next one; none, or all that a
    block may need."""
    return block_size if queries <= block_size else 2 * block_size, block_size - 1 if checked else 0


class Part:
    """The A rows of a batch that take part in a pass.

    Args:
        rows: [A] int64, in order.
        batch: B.
    """

    def __init__(self, rows: Tensor, *, batch: int) -> None:
        self.rows, self.batch, self._is_all = rows, batch, len(rows) == batch

    def of(self, whole: Tensor) -> Tensor:
        """[A, ...] of what all rows have [B, ...]; itself where they are all of them."""
        return whole if self._is_all else whole[self.rows]

    def put(self, part: Tensor, whole: Tensor | None = None) -> Tensor:
        """[B, ...] of `part` [A, ...] and, of the other rows, `whole` [B, ...], which may be written to, or zeros."""
        if self._is_all:
            return part
        if whole is None:
            whole = part.new_zeros((self.batch, *part.shape[1:]))
        whole[self.rows] = part
        return whole
