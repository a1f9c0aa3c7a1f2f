"""Schedules whose drafts are shortened."""

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from setblock.decoding.drafts.draft_length import DraftLength, DraftLengths, PassShape, RowDraft
from setblock.decoding.drafts.shorten import new_history, shortened_schedules
from setblock.model.protocol.runtime import RowSchedule

BLOCK_SIZE, LIMIT = 8, 40


class Chosen(DraftLengths):
    """Always the same length."""

    length: DraftLength

    def choose(self, rows: Sequence[RowDraft], shape: PassShape) -> list[DraftLength]:
        return [self.length for _ in rows]


def shortened(whole: RowSchedule, length: DraftLength, *, fuses_commit: bool = True) -> RowSchedule:
    lengths = Chosen()
    lengths.length = length
    row = SimpleNamespace(block_size=BLOCK_SIZE, limit=LIMIT)
    state: Any = SimpleNamespace(params=SimpleNamespace(rows=[row], sbd_config="any"))
    runner: Any = SimpleNamespace(
        fixed_keys=None,
        pads=False,
        fuses_commit=fuses_commit,
        computed=int,
        most_refed=None,
        refed=lambda row, start: 0,
    )
    (found,) = shortened_schedules(lengths, [new_history(lengths)], [whole], state, runner)
    return found


def draft_of(drafted: int, *, stop_end: int, start: int = 10) -> RowSchedule:
    """A token at `start` and so many drafted ones behind it, with a block if the answer does not end before it."""
    block_start = start + 1 + drafted
    end = min(block_start + BLOCK_SIZE, stop_end)
    tokens = tuple(range(1 + drafted))
    return RowSchedule(
        start, end, block_start, is_prefill=False, stop_end=stop_end, kinds=(0,) * drafted, token_ids=tokens
    )


def test_a_cut_draft_leaves_its_end_of_text_out_and_has_room_for_a_block() -> None:
    """The whole draft ends the answer, so no block follows it."""
    whole = draft_of(5, stop_end=16)
    assert whole.in_block == 0
    cut = shortened(whole, DraftLength(2, BLOCK_SIZE))
    assert (cut.drafted, cut.block_start, cut.in_block) == (2, 13, BLOCK_SIZE)
    uncut = shortened(whole, DraftLength(5, BLOCK_SIZE))
    assert (uncut.drafted, uncut.block_start, uncut.in_block) == (5, 16, 0)


def test_a_block_ends_at_the_limit_of_the_answer() -> None:
    cut = shortened(draft_of(5, start=32, stop_end=LIMIT), DraftLength(2, BLOCK_SIZE))
    assert (cut.block_start, cut.end) == (35, LIMIT)


@pytest.mark.parametrize("drafted", [0, 2, 5])
def test_a_block_has_a_pass_of_its_own_where_commits_are_not_fused(drafted: int) -> None:
    cut = shortened(draft_of(5, stop_end=LIMIT), DraftLength(drafted, BLOCK_SIZE), fuses_commit=False)
    assert (cut.drafted, cut.in_block, cut.fed_size) == (drafted, 0, BLOCK_SIZE)
