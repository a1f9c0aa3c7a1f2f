"""The scheduler: it shares a pass's budget of tokens among requests.

A block is fed whole or not at all; a prompt may be cut anywhere. While there are both, each kind gets at least half of the
budget, and what the other kind leaves. If not all requests fit, those that were fed longest ago come first. Prompts share their
part evenly, so that a short one is done at once however long the others are.
"""

from collections.abc import Sequence

from setblock.model.protocol.runtime import RowSchedule


def schedule(
    schedules: Sequence[RowSchedule],
    budget: int,
    *,
    served: Sequence[int],
    chunks: Sequence[int | None] | None = None,
    refed: Sequence[int] | None = None,
) -> list[RowSchedule]:
    """Return the schedule of each request, empty where it has to wait. At least one request is fed. All together are fed at
    most `budget` tokens, unless a single block is larger than its share.

    Args:
        schedules: what a pass without a budget would feed each request.
        budget: the most tokens of the pass.
        served: the number of the pass that last fed each request.
        chunks: the most tokens of each request's prompt in a pass, where it sets a number.
        refed: how many known tokens before its `start` each request is fed again with a block; none by default.
    """
    if chunks is None and sum(scheduled.tokens for scheduled in schedules) + sum(refed or ()) <= budget:
        return list(schedules)
    ends = [scheduled.start for scheduled in schedules]
    by_turn = sorted(range(len(schedules)), key=lambda index: served[index])
    prompts = [index for index in by_turn if schedules[index].is_prefill]
    blocks = [index for index in by_turn if not schedules[index].is_prefill]
    for_prompts = min(sum(schedules[index].tokens for index in prompts), budget // 2)

    # 1. Blocks
    used = 0
    for index in blocks:
        tokens = schedules[index].tokens + (refed[index] if refed else 0)
        if used == 0 or used + tokens <= budget - for_prompts:
            ends[index] = schedules[index].end
            used += tokens

    # 2. Prompts: the shortest first, so that what it leaves of its share goes to the others
    left = max(budget - used, for_prompts, 1)
    prompts = sorted(prompts[:left], key=lambda index: schedules[index].tokens)
    for place, index in enumerate(prompts):
        given = min(schedules[index].tokens, left // (len(prompts) - place), (chunks and chunks[index]) or budget)
        ends[index] = schedules[index].start + given
        left -= given
    return [
        scheduled._replace(end=end, is_cut=scheduled.is_cut or end < scheduled.end)
        for scheduled, end in zip(schedules, ends, strict=True)
    ]
