"""Compare contenders on the same prompts, in turns: seconds, passes, and whether their texts are plain decoding's.

Knows contenders and a clock. Knows nothing of which contenders a benchmark compares, or of its table.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from statistics import median
from typing import Any

from measuring.contenders import Contender
from measuring.samples import Sample, Samples, ratio_interval
from measuring.subjects import passes
from measuring.timing import interleaved, seconds, spread, timed
from setblock.model.sbd_model import SBDModel
from setblock.roofline.prediction import predicted_speedup

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
    samples: Samples | None = None,
) -> dict[str, Any]:
    """Time every contender on every prompt in turn, `rounds` times, after an answer of each that does not count.

    Args:
        sbd: what ours decode with.
        tokens: the most of an answer.
        block_size: of ours; of the passes that eq. 16 predicts from.
        rounds: that are timed.
        repeats: of each of those passes.
        samples: keeps what is timed, and has what an earlier run has timed.
    """
    samples = Samples() if samples is None else samples
    # 1. An answer that does not count, which compiles
    first = {each.name: seconds(partial(each.decode, prompts[0])) for each in contenders}

    # 2. Rounds; a prompt goes through all contenders before the next one
    for round_ in range(rounds):
        for request, prompt in enumerate(prompts):
            for each in contenders:
                if (each.name, request, round_) not in samples:
                    answer, elapsed = timed(partial(each.decode, prompt))
                    samples.add(
                        Sample(
                            each.name, request, round_, elapsed, answer.prefill_seconds, answer.token_ids, answer.passes
                        )
                    )
    timed_rounds = {each.name: [samples.of(each.name, round=round_) for round_ in range(rounds)] for each in contenders}

    # 3. Eq. 16 from times of passes, of a model that makes block passes of its own
    length = round(median(map(len, prompts))) + tokens // 2
    times = interleaved(
        {
            kind: passes(sbd, kind, block_size=block_size, kv_length=length)["library"]
            for kind in (() if sbd.sbd_config is None else ("one token", "block", "fused"))
        },
        repeats=repeats,
    )
    cost = {kind.replace(" ", "_"): each.median for kind, each in times.items()}
    rows = {each.name: _row_of(each, timed_rounds) | {"first_seconds": first[each.name]} for each in contenders}
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
        "answers": {name: [answer.token_ids for answer in each[0]] for name, each in timed_rounds.items()},
    }


def _row_of(contender: Contender, rounds: dict[str, list[list[Sample]]]) -> dict[str, Any]:
    """Return what is reported of one contender."""
    mine, plain, own_plain = (rounds[name][0] for name in (contender.name, PLAIN, OURS_PLAIN))
    tokens = sum(len(answer.token_ids) for answer in mine)
    counted = [answer.passes for answer in mine if answer.passes is not None]
    ours_plain = sum(answer.passes or 0 for answer in own_plain)
    same, same_as_ours = (
        sum(answer.token_ids == other.token_ids for answer, other in zip(mine, others, strict=True)) / len(mine)
        for others in (plain, own_plain)
    )
    own = [sum(answer.seconds for answer in each) for each in rounds[contender.name]]
    row: dict[str, Any] = {
        "seconds": asdict(spread(own)),
        "tokens": tokens,
        "tokens_per_second": tokens / median(own),
        "passes": sum(counted) if len(counted) == len(mine) else None,
        "nfe_speedup": ours_plain / max(1, sum(counted)) if len(counted) == len(mine) else None,
        "same_as_plain": same,
        "same_as_ours_plain": same_as_ours,
        "promises_plain": contender.is_plain,
    }
    for column, name in (("over_transformers", PLAIN), ("over_ours_plain", OURS_PLAIN)):
        others = [sum(answer.seconds for answer in each) for each in rounds[name]]
        row[column] = asdict(spread([theirs / mine for theirs, mine in zip(others, own, strict=True)]))
        row[f"{column}_interval"] = ratio_interval(*(_of_requests(rounds[each]) for each in (name, contender.name)))
    decoding, plainly = (
        [sum(_after_prefill(answer) for answer in each) for each in rounds[name]]
        for name in (contender.name, OURS_PLAIN)
    )
    if not any(map(math.isnan, decoding)):
        ratios = [theirs / mine for theirs, mine in zip(plainly, decoding, strict=True)]
        row["after_prefill_over_ours_plain"] = asdict(spread(ratios))
    return row


def _of_requests(rounds: list[list[Sample]]) -> list[float]:
    """Return the seconds of each request, in all rounds together."""
    return [sum(answer.seconds for answer in each) for each in zip(*rounds, strict=True)]


def _after_prefill(answer: Sample) -> float:
    return math.nan if answer.prefill_seconds is None else answer.seconds - answer.prefill_seconds
