"""The doubled input: clean rows followed by their noisy blocks, with all that the mask and the loss need.

The layout decides where each token stands, what it may see, and which output predicts which token.

Shapes: B rows, L clean tokens a row, N noisy tokens a row (padded to the longest), T = L + N.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from setblock.data.packing import IGNORE, PADDING
from setblock.masks import CLEAN
from setblock.model.attention.document_attention import Half, RowRuns, Run
from setblock.training.inputs.noising import Noising, NoisyHalf, concatenated, noise_row

RUN_LENGTH = 64
"""Noisy tokens of a document that are attended together, in whole blocks. A smaller number makes many small calls; a
larger one computes many pairs that the mask forbids."""


@dataclass(frozen=True)
class Targets:
    """The outputs that carry a loss: `index` [M] into the flattened [B * T] outputs, and `token_ids` [M] to predict
    there."""

    index: Tensor
    token_ids: Tensor


@dataclass(frozen=True)
class TrainingInputs:
    """The inputs of one forward pass of training."""

    input_ids: Tensor  # [B, T] int64
    position_ids: Tensor  # [B, T] int64, as in `masks.train_mask`, like the following three
    document_ids: Tensor
    block_ids: Tensor
    limits: Tensor
    ntp: Targets  # of the next-token term of eq. 14
    matp: Targets  # of its masked-token term
    # [M3] indices of the targets of `matp` that a clean output predicts, too: all but a document's first token, and those past
    # its end
    has_teacher: Tensor
    teacher_index: Tensor  # [M3] which of the flattened [B * T] outputs that is
    # The runs of tokens of each row that are attended together, where attention does not use a mask over whole rows
    rows: tuple[RowRuns, ...]
    causal_block: bool = False  # as in `masks.train_mask`
    matp_scale: float = 1.0  # how many masked tokens each target of `matp` counts for

    @property
    def clean_tokens(self) -> int:
        """Return the number of tokens of the texts themselves, without padding."""
        return sum(run.length for row in self.rows for run in row.clean if run.document is not None)

    @property
    def noisy_tokens(self) -> int:
        """Return the number of tokens of all noisy copies, without padding."""
        return sum(run.length for row in self.rows for run in row.noisy if run.document is not None)

    def columns(self, half: Half) -> tuple[int, int]:
        """Return the [start, end) columns of a half's tokens."""
        clean, length = sum(run.length for run in self.rows[0].clean), self.input_ids.shape[1]  # L, T
        return {"both": (0, length), "clean": (0, clean), "noisy": (clean, length)}[half]

    def to(self, device: torch.device, non_blocking: bool = False) -> "TrainingInputs":
        """Return a copy on another device."""
        return self._mapped(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "TrainingInputs":
        """Return a copy in pinned memory, from which a GPU can copy while the host continues."""
        return self._mapped(Tensor.pin_memory)

    def _mapped(self, change: Callable[[Tensor], Tensor]) -> "TrainingInputs":
        changed: dict[str, Any] = {
            name: Targets(change(value.index), change(value.token_ids)) if isinstance(value, Targets) else change(value)
            for name, value in vars(self).items()
            if name not in ("rows", "causal_block", "matp_scale")
        }
        return replace(self, **changed)


def ntp_inputs(rows: dict[str, Tensor], *, is_flat: bool = False, multiple: int = 1) -> TrainingInputs:
    """Return the inputs of plain next-token training: the clean rows only, N = 0; for the arguments see `doubled_inputs`."""
    halves = [concatenated([])] * len(rows["input_ids"])
    return _side_by_side(rows, halves, logit_shift=False, end_of_text_id=0, is_flat=is_flat, multiple=multiple)


def doubled_inputs(
    rows: dict[str, Tensor],
    *,
    block_size: int,
    noising: Noising,
    logit_shift: bool,
    noise_ids: range,
    end_of_text_id: int,
    context_length: int,
    seed: tuple[int, ...],
    idle_blocks: bool = True,
    causal_block: bool = False,
    is_flat: bool = False,
    multiple: int = 1,
) -> TrainingInputs:
    """Return the doubled input [x ‖ x̂] of eq. 14, for any number of noisy copies.

    Args:
        rows: `input_ids`, `labels`, `position_ids`, `document_ids`, each [B, L], and `row_ids` [B], on the CPU.
        block_size: k, the same for the whole batch.
        logit_shift: False: the noisy output at i predicts the token at i (the paper). True: it predicts the one at i + 1,
            and a block's first token is left to the clean stream, whose NTP term already carries it.
        seed: with the row's id, all that the noise depends on. So a row gets the same noise however rows are spread over
            processes and accumulation steps.
        noise_ids: as in `noise_row`.
        idle_blocks: keep blocks without a target. No other token sees them, so nothing changes without them.
        causal_block: as in `masks.train_mask`.
        is_flat: make one row of all, without padding: all clean tokens, then all noisy ones. Not for whole-row masks.
        multiple: pad T to a multiple of this.
    """
    halves = noisy_halves(
        rows,
        block_size=block_size,
        noising=noising,
        noise_ids=noise_ids,
        end_of_text_id=end_of_text_id,
        context_length=context_length,
        seed=seed,
    )
    halves = [_in_order(half, None if idle_blocks else learned_tokens(half, logit_shift)) for half in halves]
    inputs = _side_by_side(
        rows, halves, logit_shift=logit_shift, end_of_text_id=end_of_text_id, is_flat=is_flat, multiple=multiple
    )
    return replace(inputs, causal_block=causal_block)


def noisy_halves(rows: dict[str, Tensor], *, seed: tuple[int, ...], **options: Any) -> list[NoisyHalf]:
    """Return the noisy half of each row [B, L]; `options` are those of `noise_row`, the others those of `doubled_inputs`."""
    arrays = {name: tensor.numpy() for name, tensor in rows.items()}
    return [
        noise_row(
            **{name: arrays[name][b] for name in ("input_ids", "labels", "position_ids", "document_ids")},
            rng=np.random.default_rng((*seed, row_id)),
            **options,
        )
        for b, row_id in enumerate(arrays["row_ids"].tolist())
    ]


def _side_by_side(
    rows: dict[str, Tensor],
    halves: Sequence[NoisyHalf],
    *,
    logit_shift: bool,
    end_of_text_id: int,
    is_flat: bool,
    multiple: int,
) -> TrainingInputs:
    """Return rows [B, L] with their noisy halves; the arguments are those of `doubled_inputs`."""
    if is_flat:
        rows, halves = _as_one(rows, halves)
    documents = rows["document_ids"].numpy()  # [B, L]
    batch, clean = documents.shape
    noisy = max(len(half.input_ids) for half in halves)
    noisy += -(clean + noisy) % multiple
    length = clean + noisy

    # 1. The noisy half. Padding: its own document, and its own block, so that no query is left without a key.
    fills = {
        "input_ids": end_of_text_id,
        "labels": IGNORE,
        "is_masked": False,
        "position_ids": 0,
        "document_ids": PADDING,
        "block_ids": 1 + max(int(half.block_ids.max(initial=0)) for half in halves),
        "block_starts": 0,
    }
    columns = {name: np.full((batch, noisy), fill) for name, fill in fills.items()}
    for b, half in enumerate(halves):
        for name, column in columns.items():
            column[b, : len(half.input_ids)] = getattr(half, name)

    # 2. What it learns, and which clean outputs predict that, too. Documents are in a row by number
    row, place = learned_tokens(NoisyHalf(**columns), logit_shift).nonzero()  # [M]
    labels, document, position = (columns[name][row, place] for name in ("labels", "document_ids", "position_ids"))
    most = documents.max(initial=PADDING) + 1
    lengths = np.stack([np.bincount(each[each != PADDING], minlength=most) for each in documents])  # [B, documents]
    starts = lengths.cumsum(axis=1) - lengths
    has_teacher = np.flatnonzero((position > 0) & (position < lengths[row, document]))
    teacher_index = (row * length + starts[row, document] + position - 1)[has_teacher]

    def joined(clean_half: Tensor, name: str) -> Tensor:
        return torch.cat([clean_half, torch.from_numpy(columns[name]).long()], dim=1)  # [B, T]

    return TrainingInputs(
        input_ids=joined(rows["input_ids"], "input_ids"),
        position_ids=joined(rows["position_ids"], "position_ids"),
        document_ids=joined(rows["document_ids"], "document_ids"),
        block_ids=joined(torch.full_like(rows["input_ids"], CLEAN), "block_ids"),
        limits=joined(rows["position_ids"] + 1, "block_starts"),
        ntp=_ntp_targets(rows["labels"], rows["document_ids"], row_stride=length),
        matp=Targets(
            torch.from_numpy(row * length + clean + place - int(logit_shift)), torch.from_numpy(labels).long()
        ),
        has_teacher=torch.from_numpy(has_teacher),
        teacher_index=torch.from_numpy(teacher_index).long(),
        rows=tuple(
            RowRuns(
                _padded([Run(n, number) for number, n in enumerate(np.trim_zeros(of_row, "b").tolist())], clean),
                _padded(_noisy_runs(half), noisy),
            )
            for of_row, half in zip(lengths, halves, strict=True)
        ),
    )


def _as_one(rows: dict[str, Tensor], halves: Sequence[NoisyHalf]) -> tuple[dict[str, Tensor], list[NoisyHalf]]:
    """Return all rows joined into one without padding, and their noisy halves joined. Documents and blocks are numbered
    through."""
    is_text = rows["document_ids"] != PADDING  # [B, L]
    documents = rows["document_ids"].max(dim=1).values + 1  # [B]
    before = documents.cumsum(0) - documents
    columns = rows | {"document_ids": rows["document_ids"] + before[:, None]}
    blocks, numbered = 0, []
    for half, document in zip(halves, before.tolist(), strict=True):
        block_ids = half.block_ids + blocks
        numbered.append(replace(half, document_ids=half.document_ids + document, block_ids=block_ids))
        blocks = int(block_ids.max(initial=blocks - 1)) + 1
    one = {name: column[is_text][None] for name, column in columns.items() if name != "row_ids"}
    return one, [concatenated(numbered)]


def learned_tokens(half: NoisyHalf, logit_shift: bool) -> np.ndarray:
    """Return [N] bool: whether each noisy token is to be predicted."""
    learned: np.ndarray = half.is_masked & (half.labels != IGNORE)
    return learned & (half.position_ids != half.block_starts) if logit_shift else learned


def _in_order(half: NoisyHalf, learned: np.ndarray | None) -> NoisyHalf:
    """Return the blocks of a half, of all copies together, sorted by document and by where they start. Those without a
    `learned` [N] token are left out, unless no block has one."""
    order = np.lexsort((half.block_starts, half.document_ids))
    if learned is not None and learned.any():
        is_used = np.bincount(half.block_ids, weights=learned) > 0
        order = order[is_used[half.block_ids[order]]]
    return NoisyHalf(**{name: column[order] for name, column in vars(half).items()})


def _padded(runs: list[Run], length: int) -> tuple[Run, ...]:
    padding = length - sum(run.length for run in runs)
    return tuple(runs + [Run(padding, None)] * (padding > 0))


def _noisy_runs(half: NoisyHalf) -> list[Run]:
    """Return runs of neighbouring blocks of one document. A run sees the clean tokens before its last block."""
    runs: list[Run] = []
    starts = np.flatnonzero(np.diff(half.block_ids, prepend=-1))
    lengths = np.diff(starts, append=len(half.block_ids))
    for start, length in zip(starts.tolist(), lengths.tolist(), strict=True):
        document, earlier = int(half.document_ids[start]), int(half.block_starts[start])
        if runs and runs[-1].document == document and runs[-1].length < RUN_LENGTH:
            length += runs.pop().length
        runs.append(Run(length, document, earlier))
    return runs


def _ntp_targets(labels: Tensor, document_ids: Tensor, *, row_stride: int) -> Targets:
    """Return the clean outputs whose next token carries a loss and is of the same document."""
    learned = (labels[:, 1:] != IGNORE) & (document_ids[:, 1:] == document_ids[:, :-1])  # [B, L-1]
    row, column = learned.nonzero(as_tuple=True)
    return Targets(index=row * row_stride + column, token_ids=labels[row, column + 1])
