"""Statistics of each row's drafts (`RowHistory`), and schedules with drafts cut to the chosen lengths."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from operator import mul
from typing import Any

from setblock.decoding.drafts.draft_length import (
    CAPTURED,
    FREE_TOKENS_CPU,
    FREE_TOKENS_GPU,
    ROW_MEMORY,
    DraftLength,
    DraftLengths,
    FadingMeans,
    PassShape,
    RowDraft,
)
from setblock.decoding.drafts.kinds import NUM_KINDS, PRIOR, kinds_of_copy
from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.state import BatchState
from setblock.decoding.step.inputs import powers_up_to, row_widths
from setblock.model.protocol.runtime import RowSchedule, Runner, pass_kind

RIGHT = 0.9  # prior chance of a block's drafted token if those before it are right: high, so that blocks are tried
LEAST = 0.01  # the least gain of a block's draft over a copy, as a share: so it is fed if that costs nothing


@dataclass(eq=False)
class RowHistory:
    """The statistics of one row's drafts."""

    right: FadingMeans  # by kind, how often drafted tokens were right if all before them were
    # By place, the chance that a block's draft is right up to there, minus that of a copy, which needs no block
    of_blocks: FadingMeans
    fed: RowSchedule | None = None  # the schedule of the last pass until its result is known, then None
    whole: RowSchedule | None = None  # the last pass's schedule before its draft was shortened
    block: int = 0  # tokens of the block that gives the next draft

    def reached(self, kinds: Sequence[int]) -> list[float]:
        """Return, for each token of a draft, the chance that it and all before it are right."""
        chances = self.right.values(NUM_KINDS, _of_kind)
        return list(accumulate((chances[kind] for kind in kinds), mul))

    def learn(self, scheduled: RowSchedule) -> None:
        """Update the statistics with the result of the last draft. `scheduled`: the row's next schedule with a full
        draft."""
        fed, self.fed = self.fed, None
        if fed is not None and scheduled.start > fed.start:
            checked = fed.kinds[: fed.drafted]
            right = min(len(checked), scheduled.start - fed.start - 1)
            for kind in checked[:right]:
                self.right.update(kind, 1.0)
            if right < len(checked):
                self.right.update(checked[right], 0.0)
                self.block = 0
            elif self.whole is not None and right < len(self.whole.kinds):
                # The next pass's first token says whether the first unchecked token was right
                self.right.update(
                    self.whole.kinds[right], float(self.whole.token_ids[right + 1] == scheduled.token_ids[0])
                )
        if checks_draft(scheduled) and self.block > 1:
            places = self.block - 1
            of_block, of_copy = (
                self.reached(scheduled.kinds[:places]),
                self.reached(kinds_of_copy(scheduled.copied, places)),
            )
            for place in range(places):
                block = of_block[place] if place < len(of_block) else 0.0
                copy = of_copy[place] if of_copy else 0.0
                self.of_blocks.update(place, max(LEAST * block, block - copy))
            self.block = 0

    def draft(self, scheduled: RowSchedule, params: RequestParams, *, has_blocks: bool) -> RowDraft:
        """Return what the row may draft."""
        size = min(params.block_size, params.limit - scheduled.start - 1)
        size = size if has_blocks and size > 1 else 0  # a block of one token drafts nothing
        expected = self.of_blocks.values(max(0, size - 1), _of_place)
        return RowDraft(self.reached(scheduled.kinds), list(accumulate(expected, min)), size)


def _of_kind(kind: int, _: float) -> float:
    return PRIOR[kind]


def _of_place(_: int, before: float) -> float:
    return RIGHT * before


def draft_lengths_of(model: Any) -> DraftLengths:
    """Return the `DraftLengths` of a `LanguageModel`, made on first use."""
    if getattr(model, "draft_lengths", None) is None:
        model.draft_lengths = DraftLengths(FREE_TOKENS_CPU if model.device.type == "cpu" else FREE_TOKENS_GPU)
    found: DraftLengths = model.draft_lengths
    return found


def new_history(lengths: DraftLengths) -> RowHistory:
    """Return the history of a new row."""
    return RowHistory(FadingMeans(ROW_MEMORY, lengths.right), FadingMeans(ROW_MEMORY, lengths.of_blocks))


def checks_draft(scheduled: RowSchedule) -> bool:
    """Return whether a row's pass checks a draft, which may then be shortened."""
    return bool(scheduled.tokens) and not scheduled.is_prefill and scheduled.start < scheduled.block_start


def shortened_schedules(
    lengths: DraftLengths,
    histories: Sequence[RowHistory | None],
    schedules: Sequence[RowSchedule],
    state: BatchState,
    runner: Runner,
    *,
    is_static: bool = False,
) -> list[RowSchedule]:
    """Update the histories with the results of the last pass, and return the next pass's schedules with drafts of the
    chosen lengths. Doesn't wait for the device. `histories`: None for rows without a choice. `schedules`: with full
    drafts. `is_static`: whether the next pass has one of few sizes, powers of two."""
    for history, scheduled in zip(histories, schedules, strict=True):
        if history is not None and not scheduled.is_prefill:
            history.learn(scheduled)
    choosing = {row: each for row, each in enumerate(histories) if each is not None and checks_draft(schedules[row])}
    if not choosing:
        return list(schedules)
    # 1. What each row may draft, and what else is in the pass
    params, has_blocks = state.params.rows, state.params.sbd_config is not None
    drafts = [
        history.draft(schedules[row], params[row], has_blocks=has_blocks and schedules[row].fed_size != 0)
        for row, history in choosing.items()
    ]
    refed = [runner.refed(row, scheduled.start) if scheduled.tokens else 0 for row, scheduled in enumerate(schedules)]
    fed = [scheduled for scheduled in schedules if scheduled.tokens]
    others = [
        scheduled.tokens + refed[row]
        for row, scheduled in enumerate(schedules)
        if row not in choosing and not scheduled.is_prefill
    ]
    shape = PassShape(
        kind=CAPTURED if is_static else pass_kind(runner),
        rows=sum(not scheduled.is_prefill for scheduled in fed),
        others=sum(others),
        fuses_commit=runner.fuses_commit,
        computed=runner.computed,
        refed=None if runner.most_refed is None else [refed[row] for row in choosing],
    )
    if is_static:
        most = 1 + max(len(draft.reached) + draft.size for draft in drafts)
        widths = [each for each in powers_up_to(most) if each >= max([1, *others])]
        shape = replace(shape, widths=widths or [max(others)], padded_rows=powers_up_to(len(fed))[-1])
    elif runner.pads and len(fed) > 1:
        most = 1 + max(len(draft.reached) + draft.size for draft in drafts)
        shape = replace(shape, widths=row_widths(max([1, *others]), most), padded_rows=len(fed))
    # 2. The schedules with the chosen lengths
    found = list(schedules)
    for (row, history), length in zip(choosing.items(), lengths.choose(drafts, shape), strict=True):
        whole, history.block = schedules[row], length.fed
        history.whole = whole
        if length.fed or whole.kinds or whole.tokens > 1 or not runner.fuses_commit:
            found[row] = _with_length(whole, length, params[row], fuses_commit=runner.fuses_commit)
    return found


def settling_schedules(
    schedules: Sequence[RowSchedule], params: Sequence[RequestParams], runner: Runner
) -> list[RowSchedule]:
    """Return the schedules with no block in rows that are fed many known tokens again, so that the cache can keep their state
    after the pass. It is lost if a draft is wrong: with twice as many, they have no draft either."""
    found = list(schedules)
    for row, (scheduled, each) in enumerate(zip(schedules, params, strict=True)):
        if scheduled.is_prefill or runner.most_refed is None or not scheduled.start < scheduled.block_start:
            continue
        most, refed = max(runner.most_refed, 2 * each.block_size), runner.refed(row, scheduled.start)
        if refed >= 2 * most and each.settings.method == "exact":
            found[row] = _with_length(scheduled, DraftLength(0, 0), each, fuses_commit=True)
        elif refed >= most:
            found[row] = scheduled._replace(end=min(scheduled.end, scheduled.block_start), fed_size=0)
    return found


def _with_length(
    scheduled: RowSchedule, length: DraftLength, params: RequestParams, *, fuses_commit: bool
) -> RowSchedule:
    """Return a row's schedule with a draft and a block of the chosen length. Its other fields are those of the full draft."""
    block_start = scheduled.start + 1 + length.drafted
    # A cut draft has lost its end of text, if it had one
    stop = scheduled.stop_end if length.drafted == scheduled.drafted else params.limit
    return scheduled._replace(
        end=min(block_start + length.fed, stop) if fuses_commit else block_start,
        block_start=block_start,
        fed_size=length.fed,
    )
