"""Checks that a model's logits agree with Transformers' own uncached pass in every way that decoding and training call it.

The model is called by its attention plan. Rows have several lengths, one below a lowered threshold and two above:

    0 ......... first ......... start ......... end
      prefill           commit          block
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from setblock.data.packing import PADDING
from setblock.masks import CLEAN, MaskMod, decode_mask, train_mask
from setblock.model.attention.attention import mask_form
from setblock.model.attention.document_attention import (
    Layout,
    RowRuns,
    Run,
    attends_runs,
    document_attention,
    document_masks,
)
from setblock.model.protocol.runtime import ModelInput, PassLayout, PassPlan, RowSchedule, Runner
from setblock.model.runners.forward import logits_at

_FIRST, _START, _BLOCK = (18, 4, 12), (25, 5, 17), 4
BATCH, CAPACITY = len(_START), max(_START) + _BLOCK
_TOLERANCE = 0.01  # relative, in float32: rounding errors are far smaller, those of a wrong mask or position far larger


class DisagreementError(Exception):
    """The error raised if a model's logits are wrong; the message says where."""


class Expected:
    """The expected logits of each row."""

    def __init__(self, model: PreTrainedModel) -> None:
        """Run uncached passes over single rows with Transformers' own attention. Raise `DisagreementError` if a token's logits
        depend on later tokens, or if the model ignores a mask."""
        generator = torch.Generator().manual_seed(1)
        # The tokens [start + block] of each row
        self.rows = [torch.randint(1, 64, (start + _BLOCK,), generator=generator).to(model.device) for start in _START]
        # For each row, the logits [start + block, V] of a plain pass, and [block, V] of a block with bidirectional attention
        self.causal = [plain_logits(model, row) for row in self.rows]
        self.block: list[Tensor] = []
        for row, first, plain in zip(self.rows, _FIRST, self.causal, strict=True):
            difference = "the logits of a token change with the tokens that follow it"
            compare(plain_logits(model, row[:first]), plain[:first], difference)
        for row, start, plain in zip(self.rows, _START, self.causal, strict=True):
            masked = _masked(model, row, start)
            difference = "it gives other logits with a 4D mask and position ids than without"
            compare(masked[:start], plain[:start], difference)
            if torch.equal(masked[start], plain[start]):
                raise DisagreementError("it ignores a mask that lets a token attend to later ones")
            self.block.append(masked[start:])


def check_decoding(runner: Runner, expected: Expected) -> None:
    """Check a prefill, a commit with a block, a block, and single tokens, in a batch of rows. The runner must have an empty
    cache of `BATCH` rows of `CAPACITY` positions. Raise `DisagreementError` if some logits are not the expected ones."""
    everyone, ends = range(BATCH), [start + _BLOCK for start in _START]
    nothing, blocks = [0] * BATCH, [_BLOCK] * BATCH
    step = partial(_step, runner, expected)
    step(everyone, nothing, _FIRST, nothing, "in a prefill of rows beside each other")
    step(everyone, _FIRST, ends, blocks, "in a pass that commits a block and runs the next")
    step(everyone, _START, ends, blocks, "in a block pass")
    step([1], _START, ends, blocks, "in a block pass of a row alone")
    step([1], _START, [start + 1 for start in _START], nothing, "in a pass over one token")
    step(everyone, _START, ends, nothing, "in a pass that commits a block")


def check_training(model: PreTrainedModel, expected: Expected) -> None:
    """Check two rows with three documents, their blocks and padding. Raise `DisagreementError` as `check_decoding` does."""
    documents = ((1, 2), (0,))  # of each row
    clean = max(sum(_START[document] for document in row) for row in documents)
    length, device = clean + _BLOCK * max(map(len, documents)), model.device
    every = torch.arange(length, device=device)
    # Padding is one block, so that no query is left without a key.
    ids, positions, limits, document_ids, block_ids = (
        torch.full((2, length), value, device=device) for value in (0, 0, 0, PADDING, length)
    )
    block_ids[:, :clean], limits[:, :clean] = CLEAN, length
    rows: list[RowRuns] = []
    places: list[tuple[int, Tensor, Tensor, str]] = []
    for number, row in enumerate(documents):
        at, behind = 0, clean
        for document in row:
            start = _START[document]
            causal, block = every[at : at + start], every[behind : behind + _BLOCK]
            here = torch.cat([causal, block])
            ids[number, here], positions[number, here] = expected.rows[document], every[: start + _BLOCK]
            limits[number, here] = (every[: start + _BLOCK] + 1).clamp(max=start)
            document_ids[number, here], block_ids[number, block] = document, document
            places.append((number, causal, expected.causal[document][:start], "in a document of a packed row"))
            places.append((number, block, expected.block[document], "in a noisy block"))
            at, behind = at + start, behind + _BLOCK
        clean_runs = [Run(_START[document], place) for place, document in enumerate(row)]
        noisy_runs = [Run(_BLOCK, place, _START[document]) for place, document in enumerate(row)]
        clean_runs += [Run(clean - at, None)] * (at < clean)
        noisy_runs += [Run(length - behind, None)] * (behind < length)
        rows.append(RowRuns((*clean_runs,), (*noisy_runs,)))

    def mask_mod_for(window: int | None) -> MaskMod:
        return train_mask(
            position_ids=positions, document_ids=document_ids, block_ids=block_ids, limits=limits, window=window
        )

    more: dict[str, Any] = {}
    if attends_runs(model):
        more["layout"] = Layout(model.config.get_text_config(), rows)
        mask = document_masks(more["layout"], mask_mod_for, device=device)
    else:
        form = mask_form(model, most=length, device=device)
        mask = form.mask(mask_mod_for, batch=2, queries=length, keys=length)
    both = torch.arange(2 * length, device=device)
    with document_attention(model):
        logits = logits_at(model, both, input_ids=ids, position_ids=positions, attention_mask=mask, **more)
    for number, here, wanted, where in places:
        found = logits.view(2, length, -1)[number, here]
        compare(found, wanted, f"under the training mask, it gives other logits {where}")


def _step(
    runner: Runner,
    expected: Expected,
    rows: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    blocks: Sequence[int],
    where: str,
) -> None:
    """Feed each of `rows` from its start to its end in one pass, the last tokens as a block."""
    schedules = [RowSchedule(starts[row], ends[row], ends[row] - blocks[row], is_prefill=False) for row in rows]
    inputs = schedule_input([expected.rows[row] for row in rows], schedules, rows, batch=BATCH)
    found = runner.logits(inputs)
    logits = found if found.dim() == 2 else found[inputs.is_real]
    wanted = [
        torch.cat(
            [expected.causal[row][scheduled.start : scheduled.block_start], expected.block[row][: scheduled.in_block]]
        )
        for row, scheduled in zip(rows, schedules, strict=True)
    ]
    compare(logits, torch.cat(wanted), f"it gives other logits {where}")


def schedule_input(
    tokens: Sequence[Tensor], schedules: Sequence[RowSchedule], rows: Sequence[int], *, batch: int
) -> ModelInput:
    """Return the inputs of a pass over some rows of a batch, by their `tokens` from position 0 on. All outputs are wanted."""
    device = tokens[0].device
    start, end, block_start = torch.tensor([each[:3] for each in schedules], device=device).T[..., None]  # [A, 1]
    columns = torch.arange(max(scheduled.tokens for scheduled in schedules), device=device)  # [Q]
    positions = start + columns  # [A, Q]
    is_real = positions < end
    safe = positions.masked_fill(~is_real, 0)
    sees_all = len(schedules) == 1 and schedules[0].sees_all and bool(is_real.all())
    return ModelInput(
        plan=PassPlan(
            rows=torch.tensor(list(rows), device=device),
            batch=batch,
            ends=end[:, 0],
            queries=len(columns),
            width=len(columns),
            visible=int(end.max()),
            layout=PassLayout.UNIFORM if sees_all else PassLayout.FULL if bool(is_real.all()) else PassLayout.PADDED,
            schedules=schedules,
        ),
        tokens=torch.stack([each[here] for each, here in zip(tokens, safe, strict=True)]),
        positions=safe,
        block_start=block_start[:, 0],
        is_real=is_real,
        outputs=columns.expand_as(positions),
        wanted=is_real,
        targets=positions,
    )


def plain_logits(model: PreTrainedModel, row: Tensor, **more: Any) -> Tensor:
    """Return the logits [T, V] of an uncached pass over one row [T]."""
    logits: Tensor = model(input_ids=row[None], use_cache=False, **more).logits[0].float()
    return logits


def _masked(model: PreTrainedModel, row: Tensor, start: int) -> Tensor:
    """Return the logits [T, V] of one row whose tokens from `start` on all see each other."""
    positions = torch.arange(len(row), device=row.device)[None]
    limits = torch.where(positions < start, positions + 1, len(row))
    mask = mask_form(model, most=len(row), device=row.device).mask(
        lambda window: decode_mask(position_ids=positions, limits=limits, window=window),
        batch=1,
        queries=len(row),
        keys=len(row),
    )
    return plain_logits(model, row, position_ids=positions, attention_mask=mask)


def compare(found: Tensor, wanted: Tensor, difference: str, *, tolerance: float = _TOLERANCE) -> None:
    """Raise `DisagreementError`, which names `difference`, if the logits [T, V] differ."""
    distance = (found.float() - wanted).norm(dim=-1) / wanted.norm(dim=-1).clamp(min=1e-6)
    worst = float(distance.max())
    if not worst <= tolerance:  # also true for NaN
        raise DisagreementError(f"{difference} (by {worst:.2g} of their size)")
