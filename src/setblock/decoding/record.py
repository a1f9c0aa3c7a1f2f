"""The record of a decoding: how many passes each row took, and which pass revealed which token.

Knows steps. Knows nothing of models or text.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from setblock.decoding.loop import DecodingStep
from setblock.decoding.state import BatchState


@dataclass(frozen=True)
class PassCounts:
    """Forward passes of one request, up to the end of its answer.

    Attributes:
        prefill: passes over the prompt.
        block: passes over a block alone (over one token, in method `ntp`).
        commit: passes that committed a block and were the first pass of the next one.
    """

    prefill: int
    block: int
    commit: int

    @property
    def total(self) -> int:
        """All of them: every pass of the model counts."""
        return self.prefill + self.block + self.commit

    @property
    def decoding(self) -> int:
        """All but the prefill: what NFE speed-ups are counted in, on both sides."""
        return self.block + self.commit


class Record:
    """Adds up the steps of a batch."""

    def __init__(self, state: BatchState) -> None:
        device = state.tokens.device
        self._is_ntp = state.is_ntp
        self._prefill = torch.zeros(state.batch, dtype=torch.long, device=device)
        self._block = torch.zeros_like(self._prefill)
        self._commit = torch.zeros_like(self._prefill)
        # [B, C]: the pass that revealed each position, 0 for the prefill; and its entropy there
        self._revealed_by = torch.full_like(state.tokens, -1)
        self._entropy = torch.zeros(state.tokens.shape, device=device)

    def add(self, step: DecodingStep) -> None:
        """Count one step."""
        commit = step.committed & ~self._is_ntp
        self._prefill += (step.took_part & step.is_prefill).long()
        self._commit += commit.long()
        self._block += (step.took_part & ~commit & ~torch.tensor(step.is_prefill)).long()
        rows, columns = step.revealed.nonzero(as_tuple=True)
        positions = step.positions[rows, columns]
        self._revealed_by[rows, positions] = (self._block + self._commit)[rows]
        self._entropy[rows, positions] = step.entropy[rows, columns]

    def counts(self, row: int) -> PassCounts:
        """Passes of one row."""
        return PassCounts(int(self._prefill[row]), int(self._block[row]), int(self._commit[row]))

    def revealed_by(self, row: int, start: int, length: int) -> list[int]:
        """The pass that revealed each of `length` tokens from position `start` on; 0 is the prefill."""
        found: list[int] = self._revealed_by[row, start : start + length].tolist()
        return found

    def entropy(self, row: int, start: int, length: int) -> Tensor:
        """[length] float32, nats: the entropy at each of those tokens when it was revealed."""
        return self._entropy[row, start : start + length]
