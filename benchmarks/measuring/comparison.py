"""Compare contenders on the same prompts, in turns: seconds, passes, and whether their texts are plain decoding's.

Knows contenders and a clock. Knows nothing of which contenders a benchmark compares, or of its table.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from measuring.contenders import Answer, Contender
from measuring.subjects import passes
from measuring.timing import interleaved, seconds, spread, timed
from setblock.model.sbd_model import SBDModel
from setblock.roofline.speedup import predicted_speedup

PLAIN, OURS_PLAIN = "Transformers generate", "ours, plain"
"""The contenders that all others are compared with; each comparison has both."""


def compared(
    sbd: SBDModel,
    contenders: Sequence[Contender],
    prompts: list[list[int]],
    *,
    tokens: int,
    block_size: int,
    rounds: int,
    repeats: int,
) -> dict[str, Any]:
    """Time every contender on every prompt in turn, `rounds` times.

    Args:
        sbd: what ours decode with.
        tokens: the most of an answer.
        block_size: of ours; of the passes that eq. 16 predicts from.
        rounds: that are timed, after one that is not.
        repeats: of each of those passes.
    """
    # 1. A round that does not count, whose first answers compile: what each writes, and how many passes that takes
    first: dict[str, float] = {}
    answers: dict[str, list[Answer]] = {}
    for each in contenders:
        first[each.name] = seconds(partial(each.decode, prompts[0]))
        answers[each.name] = [each.decode(prompt) for prompt in prompts]
    plain = [answer.token_ids for answer in answers[PLAIN]]

    # 2. Rounds; a prompt goes through all contenders before the next one
    taken: dict[str, list[float]] = {each.name: [] for each in contenders}
    prefills: dict[str, list[float]] = {each.name: [] for each in contenders}
    for _ in range(rounds):
        for totals in (*taken.values(), *prefills.values()):
            totals.append(0.0)
        for prompt in prompts:
            for each in contenders:
                answer, elapsed = timed(partial(each.decode, prompt))
                taken[each.name][-1] += elapsed
                prefills[each.name][-1] += math.nan if answer.prefill_seconds is None else answer.prefill_seconds

    # 3. Eq. 16 from times of passes, of a model that makes block passes of its own
    length = round(median(map(len, prompts))) + tokens // 2
    times = interleaved(
        {
            kind: passes(sbd, kind, block_size=block_size, kv_length=length)["library"]
            for kind in (() if sbd.facts is None else ("one token", "block", "fused"))
        },
        repeats=repeats,
    )
    cost = {kind.replace(" ", "_"): each.median for kind, each in times.items()}
    rows = {
        each.name: _row_of(each, answers, taken, prefills, plain) | {"first_seconds": first[each.name]}
        for each in contenders
    }
    for name, row in rows.items():
        nfe = row["nfe_speedup"]
        if name.startswith("ours, blocks") and "compiled" not in name and 1 <= nfe <= block_size:
            row["predicted_speedup"] = predicted_speedup(block_size / nfe, block_size=block_size, **cost)
    return {
        "parameters": sbd.num_parameters,
        "prepacked": sbd.prepacked,
        "dtype": str(sbd.model.dtype).removeprefix("torch."),
        "rounds": rounds,
        "kv_length": length,
        "pass_seconds": {kind: asdict(each) for kind, each in times.items()},
        "contenders": rows,
        "answers": {name: [answer.token_ids for answer in each] for name, each in answers.items()},
    }


def _row_of(
    contender: Contender,
    answers: dict[str, list[Answer]],
    rounds: dict[str, list[float]],
    prefills: dict[str, list[float]],
    plain: list[list[int]],
) -> dict[str, Any]:
    """Return what is reported of one contender."""
    mine, own = answers[contender.name], rounds[contender.name]
    tokens = sum(len(answer.token_ids) for answer in mine)
    counted = [answer.passes for answer in mine if answer.passes is not None]
    ours_plain = sum(answer.passes or 0 for answer in answers[OURS_PLAIN])
    same = sum(answer.token_ids == other for answer, other in zip(mine, plain, strict=True))
    row: dict[str, Any] = {
        "seconds": asdict(spread(own)),
        "tokens": tokens,
        "tokens_per_second": tokens / median(own),
        "passes": sum(counted) if len(counted) == len(mine) else None,
        "nfe_speedup": ours_plain / max(1, sum(counted)) if len(counted) == len(mine) else None,
        "same_as_plain": same / len(plain),
        "promises_plain": contender.is_plain,
    }
    for column, other in (("over_transformers", PLAIN), ("over_ours_plain", OURS_PLAIN)):
        row[column] = asdict(spread([theirs / mine for theirs, mine in zip(rounds[other], own, strict=True)]))
    decoding, plainly = (
        [whole - prefill for whole, prefill in zip(rounds[name], prefills[name], strict=True)]
        for name in (contender.name, OURS_PLAIN)
    )
    if not any(map(math.isnan, decoding)):
        ratios = [theirs / mine for theirs, mine in zip(plainly, decoding, strict=True)]
        row["after_prefill_over_ours_plain"] = asdict(spread(ratios))
    return row
