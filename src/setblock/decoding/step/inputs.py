"""The schedules, plan and inputs of the next pass, built from the state: the arguments x_<t ; x̂ of eq. 9.

The host reads from the device once for each pass: the result of `schedule_columns`. Nothing else here waits for the
device, and nothing here changes tokens.

All passes of Algorithm 3 have one form: a row is fed `tokens[committed : end]`. Tokens before `block_start` run
causally, the others as parts of the block. Rows of a batch may be in different kinds of passes. A long prefill is split
over several passes.

    prefill              committed = 0, end = prefill_end                       the prompt
    block pass           committed = block_start, end = block_end               k tokens
    commit + first pass  committed = previous block's start, end = block_end    2k tokens
    commit               committed = previous block's start, end = block_start  k tokens, if the runner can't fuse it
    exact                committed = draft's first token, end = block_end       the draft, checked, and a new block
"""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from setblock.decoding.settings.table import RequestParams
from setblock.decoding.state.state import NO_TOKEN, BatchState
from setblock.decoding.step.choice import random_tokens
from setblock.model.protocol.runtime import PROMPT_PART, ModelInput, PassLayout, PassPlan, RowSchedule, Runner


def next_schedules(state: BatchState, *, fuses_commit: bool) -> list[RowSchedule]:
    """Return what the next pass feeds each row with full drafts; nothing if finished. Waits for the device."""
    return [schedule_of(row) for row in schedule_columns(state, fuses_commit=fuses_commit, with_drafts=True).tolist()]


def schedule_columns(state: BatchState, *, fuses_commit: bool, with_drafts: bool) -> Tensor:
    """Return [B, 6] int64, the numbers from which `schedule_of` builds each row's schedule.

    With `with_drafts`, and if drafts vary in length, it is [B, 6 + 2 k]: followed by the kinds of the k drafted tokens,
    with the copy's kind in the first one's place, and by the tokens.
    """
    end = state.next_end(fuses_commit=fuses_commit, commits_answers=True)
    cache, answer = state.cache, state.answer
    columns = (cache.committed, end, state.block.start, cache.prefill_end, answer.stop_end, answer.finished)
    stacked = torch.stack(columns, dim=1)
    if not (with_drafts and state.params.adapts_drafts):
        return stacked
    drafted = state.tokens.gather(1, cache.committed[:, None] + state.columns[: state.params.block_width])
    return torch.cat([stacked, state.block.kinds, drafted], dim=1)


def schedule_of(row: Sequence[int]) -> RowSchedule:
    """Return the schedule that a row of `schedule_columns` describes."""
    start, end, block_start, prefill_end, stop_end, is_finished, *draft = row
    end = start if is_finished else end
    scheduled = RowSchedule(start, end, block_start, is_prefill=start < min(end, prefill_end), stop_end=stop_end)
    if scheduled.is_prefill or not draft:
        return scheduled
    kinds, token_ids, known = draft[: len(draft) // 2], draft[len(draft) // 2 :], 1 + scheduled.drafted
    return scheduled._replace(kinds=tuple(kinds[1:known]), token_ids=tuple(token_ids[:known]), copied=kinds[0])


def prompts_in_parts(
    schedules: Sequence[RowSchedule], params: Sequence[RequestParams], *, free_tokens: float | None
) -> list[RowSchedule]:
    """Return the schedules of a prefill pass: parts of prompts, nothing for other rows. At least one has a prompt.

    As long as any prompt has a whole chunk left, only whole chunks are fed: a shorter one would be padded. After that,
    if passes are padded, prompts of about the same length are fed together, the longest first. `free_tokens`: the cost
    of another pass, in tokens; None if passes are not padded.
    """
    chunks = [each.settings.prefill_chunk or PROMPT_PART for each in params]
    prompts = [row for row, scheduled in enumerate(schedules) if scheduled.is_prefill]
    fed = {row for row in prompts if schedules[row].tokens >= chunks[row]}
    if not fed:
        prompts.sort(key=lambda row: schedules[row].tokens, reverse=True)
        lengths = [schedules[row].tokens for row in prompts]
        fed = set(prompts if free_tokens is None else prompts[: _alike(lengths, free_tokens=free_tokens)])
    ends = [
        scheduled.start + (min(scheduled.tokens, chunks[row]) if row in fed else 0)
        for row, scheduled in enumerate(schedules)
    ]
    return [
        scheduled._replace(end=end, is_cut=end < scheduled.end) for scheduled, end in zip(schedules, ends, strict=True)
    ]


def _alike(lengths: Sequence[int], *, free_tokens: float) -> int:
    """Return how many of the longest prompts to feed in the next pass, so that all passes together cost least. Each
    pass pads its prompts to the longest. `lengths`: in tokens, descending. `free_tokens`: the cost of another pass, in
    tokens."""
    count, together = len(lengths), 0
    costs = [0.0]  # of feeding the last 0, 1, 2, ... prompts
    for first in reversed(range(count)):
        cost, together = min(
            (free_tokens + lengths[first] * size + costs[count - first - size], size)
            for size in range(1, count - first + 1)
        )
        costs.append(cost)
    return together


def schedules_ahead(schedules: Sequence[RowSchedule], params: Sequence[RequestParams]) -> list[RowSchedule]:
    """Return upper bounds on the schedules of the pass after the one that feeds `schedules`, without prompts. The pass
    feeds less if a block is not complete, and nothing if an answer has ended."""
    ahead = []
    for scheduled, each in zip(schedules, params, strict=True):
        if each.settings.method == "ntp":
            end = min(scheduled.end + 1, each.limit - 1)  # an answer's last token is never fed
            bound = RowSchedule(scheduled.end, end, end, is_prefill=False)
        else:
            # The block may be new, with the one before it to commit. A prompt's last pass may also fill a block
            size = each.block_size
            first, reach = (
                (scheduled.end, scheduled.end + size) if scheduled.is_prefill else (scheduled.start, scheduled.end)
            )
            end = min(reach + size, each.limit)
            start = max(first, end - 2 * size)
            bound = RowSchedule(start, end, min(start + size, end), is_prefill=False)
        ahead.append(bound if scheduled.tokens else bound._replace(start=end))
    return ahead


def plan_pass(
    state: BatchState,
    schedules: Sequence[RowSchedule],
    runner: Runner,
    *,
    is_ahead: bool = False,
    whole_blocks: bool = False,
) -> PassPlan:
    """Return the plan of a runner's pass over `schedules`, at least one of which isn't empty. Doesn't wait for the device.

    Args:
        state: of the batch.
        schedules: of each row.
        runner: of the pass.
        is_ahead: whether the schedules are upper bounds, from `schedules_ahead`.
        whole_blocks: whether all places of a block may be revealed, however many are fed.
    """
    fed = [row for row, scheduled in enumerate(schedules) if scheduled.tokens]
    queries = max(scheduled.tokens for scheduled in schedules)
    pairs = zip(schedules, state.params.rows, strict=True)
    checked = max((scheduled.drafted for scheduled, params in pairs if params.settings.method == "exact"), default=0)
    visible = max(schedules[row].end for row in fed)
    whole_blocks = whole_blocks or is_ahead or state.params.has_sbd  # its samplers' memories have all places
    width = state.params.block_width if whole_blocks else max(1, *(scheduled.in_block for scheduled in schedules))
    state.may_prefill = has_prefill = any(scheduled.is_prefill for scheduled in schedules)
    device, causal_block = (
        state.tokens.device,
        state.params.sbd_config is not None and state.params.sbd_config.causal_block,
    )
    layout = PassLayout.PADDED
    if not is_ahead and all(schedules[row].tokens == queries for row in fed):
        sees_all = all(schedules[row].end == visible and schedules[row].sees_all for row in fed)
        layout = PassLayout.UNIFORM if sees_all and (queries == 1 or not causal_block) else PassLayout.FULL
    is_everyone = len(fed) == state.batch
    rows = state.rows if is_everyone else torch.tensor(fed, device=device)
    if any(scheduled.is_cut for scheduled in schedules):
        ends = torch.tensor([schedules[row].end for row in fed], device=device)
    else:
        ends = state.next_end(fuses_commit=runner.fuses_commit)
        ends = ends if is_everyone else ends[rows]
    return PassPlan(
        rows=rows,
        batch=state.batch,
        ends=ends,
        is_prefill=torch.tensor([schedules[row].is_prefill for row in fed], device=device) if has_prefill else None,
        queries=queries,
        width=width,
        checked=checked,
        visible=visible,
        fuses_commit=runner.fuses_commit,
        causal_block=causal_block,
        layout=layout,
        schedules=None if is_ahead else [schedules[row] for row in fed],
    )


def row_widths(least: int, most: int) -> list[int]:
    """Return the sizes of a row, in tokens, that padded passes may have: at least `least`; more than `most` is of no use."""
    return sorted({least, max(least, most), *(each for each in _WIDTHS if least < each < most)})


def powers_up_to(number: int) -> list[int]:
    """Return 1, 2, 4, ... up to the first power of two that is at least `number`."""
    return [1 << bits for bits in range((number - 1).bit_length() + 1)]


_WIDTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 96, 128, 192, 256)


def prepare_inputs(state: BatchState, plan: PassPlan) -> ModelInput:
    """Return the next pass's inputs, and the outputs to read."""
    # 1. Tokens of the A rows that take part
    end, committed, block_start = (
        each[:, None] for each in (plan.ends, plan.of(state.cache.committed), plan.of(state.block.start))
    )
    positions = committed + state.columns[: plan.queries]  # [A, Q]
    if plan.is_full:
        is_real = state.everybody[: positions.shape[0], None].expand_as(positions)
    else:
        is_real = positions < end
        positions = positions * is_real

    # 2. The outputs that predict masked tokens of the block and, in exact rows, the draft to check
    of_block = [plan.of(each) for each in (state.block.positions, state.candidates(), state.params.shifts)]  # [A, k]
    if plan.width < state.params.block_width:
        of_block = [each[:, : plan.width] for each in of_block]  # [A, w]
    target, wanted, shift = of_block
    source = target - shift
    if plan.checked > 0:
        checked = committed + state.columns[1 : plan.checked + 1]  # [A, m]
        is_draft = checked < block_start
        if not state.params.is_all_exact:
            is_draft &= plan.of(state.params.is_exact)[:, None]
        target, source = torch.cat([target, checked], dim=1), torch.cat([source, checked - 1], dim=1)
        wanted = torch.cat([wanted, is_draft], dim=1)
    wanted = wanted & (source < end)
    if plan.is_prefill is not None:  # a prompt has no draft to check, and a repeated prefill predicts nothing new
        wanted &= ~(plan.is_prefill & plan.of(state.cache.prefilled))[:, None]
        wanted[:, plan.width :] &= ~plan.is_prefill[:, None]
    inputs = ModelInput(
        plan=plan,
        tokens=plan.of(state.tokens).gather(1, positions),
        positions=positions,
        block_start=block_start[:, 0],
        is_real=is_real,
        outputs=(source - committed).clamp(0, plan.queries - 1),
        wanted=wanted,
        targets=target,
    )
    sbd_config = state.params.sbd_config
    if sbd_config is not None and sbd_config.noise_vocab_size is not None:  # there is no mask token to feed
        noise = random_tokens(plan.of(state.params.seeds), inputs.positions, vocab_size=sbd_config.noise_vocab_size)
        inputs = replace(inputs, tokens=noise.where(inputs.tokens == NO_TOKEN, inputs.tokens))
    return inputs
