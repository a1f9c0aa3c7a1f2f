"""Checks that a model with a recurrent state continues rightly from it, by the passes of `StateRunner`.

They are passes over several tokens, after the state was put back, and over rows of several lengths.

    0 ......... first ......... start ......... end
      prefill           right draft     wrong draft, then the right tokens
"""

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from setblock.model.probe.agreement import compare, plain_logits, schedule_input
from setblock.model.protocol.runtime import RowSchedule, Runner

_FIRST, _START, _MORE = (18, 4, 12), (25, 5, 17), 4
_EVERYONE = range(len(_FIRST))
_TOLERANCE = 1e-3  # relative, in float32; the errors of some layers grow with each token that is fed alone


def check_states(runner: Runner, model: PreTrainedModel) -> None:
    """Compare the passes of `runner`, which has an empty cache, with the model's own uncached ones over single rows. Raise
    `DisagreementError` where they differ, or if a token's logits depend on later tokens."""
    generator = torch.Generator().manual_seed(1)
    rows = [torch.randint(1, 64, (start + _MORE,), generator=generator).to(model.device) for start in _START]
    expected = [plain_logits(model, row) for row in rows]
    for row, first, logits in zip(rows, _FIRST, expected, strict=True):
        compare(
            plain_logits(model, row[:first]),
            logits[:first],
            "the logits of a token change with the tokens that follow it",
        )

    def step(members: Sequence[int], starts: Sequence[int], ends: Sequence[int], where: str, *, wrong: int = 0) -> None:
        """Feed each of `members` from its start to its end, of which the last `wrong` tokens are wrong and not compared."""
        schedules = [
            RowSchedule(starts[row], ends[row], ends[row] - wrong, is_prefill=starts[row] == 0) for row in members
        ]
        fed = [
            torch.cat([rows[row][: ends[row] - wrong], 64 - rows[row][ends[row] - wrong : ends[row]]])
            for row in members
        ]
        inputs = schedule_input(fed, schedules, members, batch=len(rows))
        inputs.wanted[:] &= inputs.positions < inputs.block_start[:, None]
        wanted = [expected[row][starts[row] : ends[row] - wrong] for row in members]
        compare(runner.logits(inputs), torch.cat(wanted), f"it gives other logits {where}", tolerance=_TOLERANCE)

    ends = [start + _MORE for start in _START]
    step(_EVERYONE, [0] * len(rows), _FIRST, "in a prefill")
    step([0], _FIRST, _START, "in a pass over several tokens from a state")
    for at in range(_FIRST[2], _START[2]):
        step([2], [at] * len(rows), [at + 1] * len(rows), "in a pass over one token from a state")
    step(_EVERYONE, [25, 4, 17], ends, "in a pass over several rows from their states", wrong=2)
    step(_EVERYONE, _START, ends, "after its state was put back", wrong=1)
    step(_EVERYONE, [end - 1 for end in ends], ends, "after its state was put back twice")
