"""The requests that run: their batch, and their rows of the static table."""

from collections.abc import Sequence

import torch

from setblock.decoding.batch import Batch
from setblock.decoding.state.state import BatchState
from setblock.decoding.state.table import StateTable
from setblock.engine.request import EngineSequence


class RunningBatch:
    """The requests that run. A pass changes their state in the batch, or, if it is captured, in the table; it is copied to the
    other place when it is needed there.

    Attributes:
        table: the static table.
        sequences: the requests.
        batch: theirs, in the same order, while there are any.
    """

    batch: Batch

    def __init__(self, table: StateTable) -> None:
        self.table, self.sequences = table, list[EngineSequence]()
        self._free_rows = list(reversed(range(table.vacant)))
        self._rows: torch.Tensor  # [R] int64, the rows of the batch in the table
        # Whether passes have changed the state in one of the two places since it was written to the other
        self._batch_is_newer = self._table_is_newer = False

    def join(self, joining: Sequence[EngineSequence]) -> None:
        """Add requests that have waited."""
        parts = [self.batch] if self.sequences else []
        self.save()
        for sequence in joining:
            parts.append(sequence.opened())
            sequence.row, sequence.rows = self._free_rows.pop(), None
            self.table.write(sequence.row, parts[-1].state)
        self.sequences += joining
        self._rows = self._rows_of(self.sequences)
        requests = [params for part in parts for params in part.state.params.rows]
        self.batch = Batch.joined(parts, state=self.table.load(self._rows, requests))
        self._table_is_newer = False

    def leave(self, rows: Sequence[int]) -> None:
        """Remove the requests with these numbers."""
        staying = sorted({*range(len(self.sequences))} - {*rows})
        self._free_rows += [self.sequences[row].row for row in rows]
        self.save()
        if staying:
            self.batch = self.selected(staying)
        else:  # no tensors of finished requests are kept
            del self.batch
        self.sequences = [self.sequences[row] for row in staying]
        self._rows = self._rows_of(self.sequences)
        self._table_is_newer = False

    def selected(self, rows: Sequence[int]) -> Batch:
        """Return a batch of some of the requests, with their state in the table."""
        state, at = self.batch.state, self._rows_of([self.sequences[row] for row in rows])
        requests = [state.params.rows[row] for row in rows]
        return self.batch.select(rows, state=self.table.load(at, requests, may_prefill=state.may_prefill))

    def save(self) -> None:
        """Write the batch's state to the table, if it is newer."""
        if self.sequences and self._batch_is_newer:
            self.table.store(self._rows, self.batch.state)
        self._batch_is_newer = False

    def load(self) -> BatchState:
        """Return the batch's state, read from the table if that is newer."""
        if self._table_is_newer:
            self.batch.state = self.table.load(self._rows, self.batch.state.params.rows, may_prefill=False)
            self._table_is_newer = False
        return self.batch.state

    def changing(self) -> BatchState:
        """Return the batch's state, to be changed."""
        state, self._batch_is_newer = self.load(), True
        return state

    def table_has_changed(self) -> None:
        """Note that a pass changes the state in the table."""
        self._table_is_newer = True

    def _rows_of(self, sequences: Sequence[EngineSequence]) -> torch.Tensor:
        return torch.tensor([sequence.row for sequence in sequences], dtype=torch.long, device=self.table.device)
