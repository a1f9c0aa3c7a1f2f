"""Advice for one model, machine and load: which block size, which gamma, what speed-up to expect.

Knows predicted times, and what the user measured of the trained model. How many passes a gamma saves and what it costs in
accuracy depends on the model's training, so neither is ever guessed here.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from setblock.errors import ParameterError, SetBlockError
from setblock.roofline.prediction import PassTimes, block_speedup, break_even_nfe, pass_times, slowdown
from setblock.roofline.speedup import predicted_speedup

PLANNED_BLOCK_SIZES = (4, 8, 16, 32)


@dataclass(frozen=True, kw_only=True)
class BlockCost:
    """What blocks of one size cost under the planned load.

    Attributes:
        slowdown: a block pass over a one-token pass.
        break_even_nfe: the NFE speed-up from which blocks pay; None where they never do.
        best: the speed-up if every block took a single pass: no sampler can do better.
    """

    block_size: int
    slowdown: float
    break_even_nfe: float | None
    best: float


def block_costs(
    times: PassTimes, *, concurrency: int, kv_length: int, block_sizes: Sequence[int] = PLANNED_BLOCK_SIZES
) -> list[BlockCost]:
    """The cost of each block size."""
    costs = []
    for k in block_sizes:
        at = {"batch": concurrency, "kv_length": kv_length}
        one, block, fused = pass_times(times, k, **at)
        best = predicted_speedup(1, block_size=k, one_token=one, block=block, fused=fused)
        even = break_even_nfe(times, block_size=k, **at)
        costs.append(BlockCost(block_size=k, slowdown=slowdown(times, k, **at), break_even_nfe=even, best=best))
    return costs


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """What `setblock evaluate --json` told of one way to decode the trained model.

    Attributes:
        gamma: None where the sampler has none.
        accuracy, ntp_accuracy: of the method and of plain decoding, on the same examples.
        nfe_speedup: over plain decoding.
    """

    method: str
    sampler: str
    gamma: float | None
    block_size: int
    accuracy: float
    ntp_accuracy: float
    nfe_speedup: float
    num_examples: int

    def speedup(self, times: PassTimes, *, concurrency: int, kv_length: int) -> float:
        """What eq. 16 makes of the measured passes."""
        k = self.block_size
        one, block, fused = pass_times(times, k, batch=concurrency, kv_length=kv_length)
        if self.method == "exact":
            # It checks its drafts, so how many of its passes commit is not in l: all are taken for fused ones, with all logits.
            fused = times.seconds(2 * k, batch=concurrency, kv_length=kv_length)
            return self.nfe_speedup * one / fused
        # Short answers can take a pass more than plain decoding's; eq. 16 begins at l = k.
        passes = min(k / self.nfe_speedup, k)
        speedup = predicted_speedup(passes, block_size=k, one_token=one, block=block, fused=fused)
        return speedup * min(self.nfe_speedup, 1)


def read_evaluations(path: Path) -> list[Evaluated]:
    """The results in a file of JSON lines, each of one `setblock evaluate --json`; those of method `ntp` are skipped.

    Raises:
        SetBlockError: there is no such file, or a line is no such result.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SetBlockError(f"can't read {path}: {error}") from error
    found = list(_evaluations(path, lines))
    if not found:
        raise SetBlockError(f"{path} holds no result of method sbd or exact")
    return found


def _evaluations(path: Path, lines: Sequence[str]) -> Iterator[Evaluated]:
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            result: Any = json.loads(line)
        except json.JSONDecodeError as error:
            raise SetBlockError(f"{where} is not JSON: {error}") from error
        if not isinstance(result, dict):
            raise SetBlockError(f"{where} is no JSON object")
        if result.get("method") == "ntp":
            continue
        try:
            gamma = result.get("gamma")
            evaluated = Evaluated(
                method=str(result["method"]),
                sampler=str(result.get("sampler")),
                gamma=None if gamma is None else float(gamma),
                block_size=int(result["block_size"]),
                accuracy=float(result["accuracy"]),
                ntp_accuracy=float(result["ntp_accuracy"]),
                nfe_speedup=float(result["nfe_speedup"]),
                num_examples=int(result["num_examples"]),
            )
        except KeyError as error:
            raise SetBlockError(f"{where} has no {error}: it is no result of `setblock evaluate --json`") from error
        except (TypeError, ValueError) as error:
            raise SetBlockError(f"{where} is no result of `setblock evaluate --json`: {error}") from error
        if not 0 < evaluated.nfe_speedup <= evaluated.block_size:
            raise SetBlockError(
                f"{where}: nfe_speedup must be in 0..{evaluated.block_size} (the block size), "
                f"not {evaluated.nfe_speedup:g}"
            )
        yield evaluated


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is known of one load.

    Attributes:
        costs: of each block size.
        stated: block size, NFE speed-up as stated by the user, and the speed-up that follows; None where none was stated.
        evaluated: what was measured, each with the speed-up that follows, the fastest first.
        chosen: of these, the fastest that gives up no more accuracy than allowed and beats plain decoding; None: none does.
    """

    costs: list[BlockCost]
    stated: tuple[int, float, float] | None
    evaluated: list[tuple[Evaluated, float]]
    chosen: Evaluated | None


def plan(
    times: PassTimes,
    *,
    concurrency: int,
    kv_length: int,
    block_size: int,
    nfe_speedup: float | None = None,
    evaluations: Sequence[Evaluated] = (),
    tolerance: float = 0.01,
) -> Plan:
    """Plan one load.

    Args:
        concurrency: requests at once, each with `kv_length` cached positions.
        block_size: that `nfe_speedup` was measured at.
        tolerance: accuracy that may be given up, as a share of the examples.

    Raises:
        ParameterError: `tolerance` or `nfe_speedup` is out of its range.
    """
    if not 0 <= tolerance <= 1:
        raise ParameterError(f"tolerance must be in 0..1, not {tolerance:g}")
    stated = None
    if nfe_speedup is not None:
        if not 1 <= nfe_speedup <= block_size:
            raise ParameterError(f"NFE speed-up must be in 1..{block_size} (the block size), not {nfe_speedup:g}")
        at = {"block_size": block_size, "batch": concurrency, "kv_length": kv_length}
        stated = (block_size, nfe_speedup, block_speedup(times, nfe_speedup, **at))
    evaluated = [(each, each.speedup(times, concurrency=concurrency, kv_length=kv_length)) for each in evaluations]
    evaluated.sort(key=lambda row: row[1], reverse=True)
    rounding = 1e-9  # 0.98 - 0.97 is a little more than 0.01
    good = (
        each for each, speedup in evaluated if speedup > 1 and each.accuracy >= each.ntp_accuracy - tolerance - rounding
    )
    return Plan(
        costs=block_costs(times, concurrency=concurrency, kv_length=kv_length),
        stated=stated,
        evaluated=evaluated,
        chosen=next(good, None),
    )
