"""The static table of rows: the state of all requests that run, at addresses that don't change.

A request that joins is written into a row of it, and one that leaves frees its row. A pass works on the rows that take part
in it: `StateTable.load` gives them as a `BatchState`, and `StateTable.store` writes them back. Neither waits for the device.
Shapes: T rows of the table; R rows of a pass; k, C, E, V and n as in `state`.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from setblock.decoding.drafts.kinds import CONFIDENCES
from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.state import (
    INTEGERS,
    NEVER,
    NO_TOKEN,
    NUMBERS,
    Answer,
    BatchParams,
    BatchState,
    Block,
    Cached,
    Columns,
    Record,
)
from setblock.model.protocol.draft_text import DraftText
from setblock.model.protocol.sbd_config import SBDModelConfig

# The fields of a state that are one integer or bool of each row, packed into one tensor
_INTEGERS: dict[str, tuple[str, ...]] = {
    "cache": ("committed", "prefill_end"),
    "block": ("start", "end", "needed_end", "fed_size", "passes"),
    "answer": ("text_end", "stop_end", "end"),
    "record": ("prefill", "number", "commits", "drafted", "accepted"),
}
_FLAGS: dict[str, tuple[str, ...]] = {"cache": ("prefilled",), "answer": ("finished", "failed")}
_PACKED = [(group, name) for groups in (_INTEGERS, _FLAGS) for group, names in groups.items() for name in names]
_PACKED.sort(key=lambda field: field[0] == "record")  # last, as a state may have none

# The other fields, with their sizes after the rows. The last four are there only if log-probabilities are kept
_WIDE: dict[tuple[str, str], Callable[[BatchParams], tuple[int, ...]]] = {
    ("block", "revealed"): lambda params: (params.block_width,),
    ("block", "kinds"): lambda params: (params.block_width,),
    ("", "tokens"): lambda params: (params.capacity,),
    ("record", "revealing"): lambda params: (params.capacity,),
    ("record", "entropies"): lambda params: (params.capacity,),
    ("record", "logprob"): lambda params: (params.capacity,),
    ("record", "rank"): lambda params: (params.capacity,),
    ("record", "top_logprobs"): lambda params: (params.capacity, params.num_alternatives or 0),
    ("record", "top_ids"): lambda params: (params.capacity, params.num_alternatives or 0),
}
_OF_LOGPROBS = tuple(_WIDE)[-4:]


class StateTable:
    """The state and the parameters of up to T - 1 running requests. The last row has no request: it is finished, and stands
    for the rows that fill a pass of a fixed size up.

    Attributes:
        vacant: the number of the last row.
        version: how often a tensor was replaced by a larger one. Addresses hold until it changes.
    """

    def __init__(
        self,
        rows: int,
        *,
        sbd_config: SBDModelConfig | None,
        device: torch.device,
        draft_text: DraftText | None = None,
    ) -> None:
        """Make a table for `rows` requests. Other arguments are those of `open_state`."""
        self.vacant, self.version = rows, 0
        self._sbd_config, self.device = sbd_config, device
        self._draft_text = None if draft_text is None else draft_text.to(device)
        self._confidences = torch.tensor(CONFIDENCES, device=device)
        self._packed = torch.zeros((rows + 1, len(_PACKED)), dtype=torch.long, device=device)
        self._packed[rows, _PACKED.index(("answer", "finished"))] = 1
        self._columns = Columns(
            integers=torch.zeros((rows + 1, len(INTEGERS)), dtype=torch.long, device=device),
            numbers=torch.zeros((rows + 1, len(NUMBERS)), device=device),
            ends=torch.full((rows + 1, 1), NO_TOKEN, device=device),
        )
        self._columns.integers[rows, INTEGERS.index("block_size")] = 1
        self._columns.integers[rows, INTEGERS.index("top_k")] = NEVER
        self._columns.numbers[rows] = 1.0
        self._wide: dict[tuple[str, str], Tensor] = {}
        self._first_logits = self._columns.numbers[:, :0]  # [T, V] float32; [T, 0] before any row has some

    @torch.inference_mode()
    def load(
        self, rows: Tensor, requests: Sequence[RequestParams], *, may_prefill: bool = True, records: bool = True
    ) -> BatchState:
        """Return a copy of the state of `rows` [R] int64, whose requests are `requests` [R], as narrow as possible. Without
        `records`, what passes do is not recorded, and the table keeps what it has of it."""
        columns = Columns(*(each.index_select(0, rows) for each in vars(self._columns).values()))
        params = BatchParams(
            requests, self._sbd_config, device=self.device, columns=columns, confidences=self._confidences
        )
        found: dict[str, dict[str, Tensor]] = {group: {} for group in ("", *_INTEGERS)}
        packed = self._packed.index_select(0, rows).unbind(1)
        for (group, name), each in zip(_PACKED, packed, strict=True):
            found[group][name] = each > 0 if name in _FLAGS.get(group, ()) else each
        for field, size in _WIDE.items():
            if field[0] == "record" and not records:
                continue
            found[field[0]][field[1]] = (
                columns.numbers.new_empty((len(requests), *[0] * len(size(params))))
                if field in _OF_LOGPROBS and params.num_alternatives is None
                else _narrow(self._wide[field], size(params)).index_select(0, rows)
            )
        return BatchState(
            params=params,
            tokens=found[""]["tokens"],
            cache=Cached(**found["cache"]),
            block=Block(**found["block"]),
            answer=Answer(**found["answer"]),
            first_logits=self._first_logits.index_select(0, rows),
            record=Record(**found["record"]) if records else None,
            draft_text=self._draft_text,
            may_prefill=may_prefill,
        )

    @torch.inference_mode()
    def store(self, rows: Tensor, state: BatchState) -> None:
        """Write a state that `load` has given, changed by passes, back to its `rows` [R] int64."""
        self._reserve(state)
        fields = [each for each in _PACKED if each[0] != "record" or state.record is not None]
        packed = torch.stack([getattr(getattr(state, group), name).long() for group, name in fields], dim=1)
        _narrow(self._packed, packed.shape[1:]).index_copy_(0, rows, packed.to(self.device))
        for (group, name), whole in self._wide.items():
            if (group, name) in _OF_LOGPROBS and state.params.num_alternatives is None:
                continue
            if group == "record" and state.record is None:
                continue
            part = getattr(getattr(state, group) if group else state, name)
            _narrow(whole, part.shape[1:]).index_copy_(0, rows, part.to(self.device))
        if state.first_logits.shape[1]:
            self._first_logits.index_copy_(0, rows, state.first_logits)

    @torch.inference_mode()
    def write(self, row: int, state: BatchState) -> None:
        """Write the state of a request, of one row, into a free `row`. The state may be on the host, and without a record."""
        self._reserve(state)
        for whole in self._changing:
            whole[row].zero_()
        columns = state.params.columns
        self._columns.integers[row] = columns.integers[0]
        self._columns.numbers[row] = columns.numbers[0]
        self._columns.ends[row] = NO_TOKEN
        self._columns.ends[row, : columns.ends.shape[1]] = columns.ends[0]
        self.store(torch.full((1,), row, device=self.device), state)

    @torch.inference_mode()
    def snapshot(self) -> list[Tensor]:
        """Return a copy of what passes change."""
        return [each.clone() for each in self._changing]

    @torch.inference_mode()
    def restore(self, snapshot: Sequence[Tensor]) -> None:
        """Put a snapshot back, to the same addresses."""
        for whole, each in zip(self._changing, snapshot, strict=True):
            whole.copy_(each)

    def is_like(self, snapshot: Sequence[Tensor]) -> bool:
        """Return whether the table is as in a snapshot; numbers may differ by rounding."""
        pairs = zip(self._changing, snapshot, strict=True)
        return all(torch.allclose(each, other, equal_nan=True) for each, other in pairs)

    @property
    def _changing(self) -> list[Tensor]:
        return [self._packed, *self._wide.values(), self._first_logits]

    def _reserve(self, state: BatchState) -> None:
        """Replace each tensor that a state doesn't fit into by a larger one."""
        for field, size in _WIDE.items():
            is_record, sizes = field[0] == "record", [*size(state.params)]
            whole = self._wide.get(field)
            if whole is None:
                is_unused = field in _OF_LOGPROBS and state.params.num_alternatives is None
                if is_record and (state.record is None or is_unused):
                    continue
                part = getattr(getattr(state, field[0]) if field[0] else state, field[1])
                whole = part.new_zeros((self.vacant + 1, *[0] * len(sizes)), device=self.device)
            if is_record:  # passes write them for all rows, wherever these are
                sizes[0] = max(sizes[0], self._wide["", "tokens"].shape[1])
            self._wide[field] = self._fitted(whole, sizes)
        self._first_logits = self._fitted(self._first_logits, state.first_logits.shape[1:])
        ends = self._fitted(self._columns.ends, state.params.ends.shape[1:], NO_TOKEN)
        self._columns = replace(self._columns, ends=ends)

    def _fitted(self, whole: Tensor, sizes: Sequence[int], value: int = 0) -> Tensor:
        largest = [max(each) for each in zip(whole.shape[1:], sizes, strict=True)]
        if largest == list(whole.shape[1:]):
            return whole
        self.version += 1
        larger = whole.new_full((len(whole), *largest), value)
        _narrow(larger, whole.shape[1:]).copy_(whole)
        return larger


def _narrow(whole: Tensor, sizes: Sequence[int]) -> Tensor:
    """Return the first of `whole` [T, ...] in each dimension after the rows: [T, *sizes]."""
    for dim, size in enumerate(sizes, start=1):
        whole = whole.narrow(dim, 0, size)
    return whole
