"""The samplers of a batch, where requests may have different ones.

Knows which rows have which sampler, and keeps what each remembers between passes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.samplers import BlockView, Memory, Sampler, Selection
from setblock.errors import SetBlockError


@dataclass(frozen=True)
class RowSelection:
    """What all rows' samplers say together.

    Attributes:
        reveal: [B, k] bool, the positions to reveal.
        logits: [B, k, V] float32, what tokens are chosen from.
        entropy: [B, k] float32, nats, of the distribution at each position; meaningful at candidates only.
    """

    reveal: Tensor
    logits: Tensor
    entropy: Tensor


class RowSamplers:
    """One sampler a row; rows of equal samplers are asked together."""

    def __init__(self, samplers: Sequence[Sampler], *, device: torch.device) -> None:
        groups: list[tuple[Sampler, list[int]]] = []
        for row, sampler in enumerate(samplers):
            same = next((rows for other, rows in groups if other == sampler), None)
            if same is None:
                groups.append((sampler, [row]))
            else:
                same.append(row)
        self._groups = [(sampler, torch.tensor(rows, device=device)) for sampler, rows in groups]
        self._memories: list[Memory] = [{} for _ in groups]

    def select(self, logits: Tensor, *, candidates: Tensor, revealed: Tensor, is_new: Tensor) -> RowSelection:
        """Ask each row's sampler.

        Args:
            logits, candidates, revealed: as in `BlockView`.
            is_new: [B] bool, rows in whose block no pass has revealed anything yet; what was remembered of them is forgotten.

        Raises:
            SetBlockError: a sampler reveals nothing where there are candidates, or what is none.
        """
        if len(self._groups) == 1:
            block = BlockView(logits, candidates, revealed, self._recall(0, is_new))
            selection = self._ask(0, block)
            return RowSelection(
                selection.reveal, logits if selection.logits is None else selection.logits, block.entropy
            )
        reveal, entropy = torch.zeros_like(candidates), logits.new_zeros(candidates.shape)
        for index, (_, rows) in enumerate(self._groups):
            memory = self._recall(index, is_new[rows])
            block = BlockView(logits[rows], candidates[rows], revealed[rows], memory)
            selection = self._ask(index, block)
            reveal[rows], entropy[rows] = selection.reveal, block.entropy
            if selection.logits is not None:
                logits = logits.index_copy(0, rows, selection.logits)
        return RowSelection(reveal, logits, entropy)

    def _ask(self, index: int, block: BlockView) -> Selection:
        sampler = self._groups[index][0]
        selection = sampler.select(block)
        chosen = selection.reveal & block.candidates
        if bool(
            (block.candidates.any(dim=1) & ~chosen.any(dim=1)).any() | (selection.reveal & ~block.candidates).any()
        ):
            # The one would decode for ever, the other write over what is fixed.
            raise SetBlockError(
                f"sampler {sampler} must reveal at least one candidate of each row, and candidates only"
            )
        self._memories[index] = selection.memory
        return selection

    def _recall(self, index: int, is_new: Tensor) -> Memory:
        kept = self._memories[index].items()
        return {name: each.masked_fill(is_new.view(-1, *[1] * (each.dim() - 1)), 0) for name, each in kept}
