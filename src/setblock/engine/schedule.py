"""Share a pass's budget of tokens among requests.

Knows numbers of tokens. Knows nothing of models, pages or text.

A block is fed whole or not at all; a prompt may be cut anywhere. While there are both, each kind may have half of the budget at
least, and has what the other leaves. Of requests that don't all fit, those served longest ago come first. Prompts share what
they have evenly, so that a short one is done at once however long the others are.
"""

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Need:
    """Describe what a full next pass feeds a request.

    Attributes:
        start, end: the positions, `end` not included.
        is_prefill: whether it may be cut.
        served: number of the pass that last fed it.
    """

    start: int
    end: int
    is_prefill: bool
    served: int

    @property
    def tokens(self) -> int:
        """Return the number of tokens."""
        return self.end - self.start


def schedule(needs: Sequence[Need], budget: int) -> list[int]:
    """Return the position up to which each request is fed, its `start` where it has to wait. At least one is fed, and
    at most `budget` tokens are, unless a single block is larger than its share."""
    ends = [need.start for need in needs]
    by_turn = sorted(range(len(needs)), key=lambda index: needs[index].served)
    prompts = [index for index in by_turn if needs[index].is_prefill]
    blocks = [index for index in by_turn if not needs[index].is_prefill]
    for_prompts = min(sum(needs[index].tokens for index in prompts), budget // 2)

    # 1. Blocks
    used = 0
    for index in blocks:
        if used == 0 or used + needs[index].tokens <= budget - for_prompts:
            ends[index] = needs[index].end
            used += needs[index].tokens

    # 2. Prompts: the smallest first, so that what it leaves of its share goes to the others
    left = max(budget - used, for_prompts, 1)
    prompts = sorted(prompts[:left], key=lambda index: needs[index].tokens)
    for place, index in enumerate(prompts):
        given = min(needs[index].tokens, left // (len(prompts) - place))
        ends[index] = needs[index].start + given
        left -= given
    return ends
