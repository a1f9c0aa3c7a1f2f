"""Time several actions in one run, interleaved, so that a machine's drift falls on all of them alike."""

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch

Action = Callable[[], object]
Result = TypeVar("Result")


@dataclass(frozen=True)
class Spread:
    """Hold what repeats of one measurement gave. Times are in seconds."""

    median: float
    lower_quartile: float
    upper_quartile: float
    repeats: int


def spread(values: list[float]) -> Spread:
    """Return median and quartiles of at least one value."""
    lower, _, upper = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return Spread(statistics.median(values), lower, upper, len(values))


def timed(action: Callable[[], Result]) -> tuple[Result, float]:
    """Return what one call gives, and its wall-clock in seconds, the device's work included."""
    synchronise()
    started = time.perf_counter()
    result = action()
    synchronise()
    return result, time.perf_counter() - started


def seconds(action: Action) -> float:
    """Return the wall-clock of one call, the device's work included."""
    return timed(action)[1]


def interleaved(actions: Mapping[str, Action], *, repeats: int, warmup: int = 2) -> dict[str, Spread]:
    """Time every action once, then every action again, `repeats` times over, after `warmup` rounds that don't count."""
    times: dict[str, list[float]] = {name: [] for name in actions}
    for round_ in range(warmup + repeats):
        for name, action in actions.items():
            taken = seconds(action)
            if round_ >= warmup:
                times[name].append(taken)
    return {name: spread(values) for name, values in times.items()}


def synchronise() -> None:
    """Wait for a GPU's queued work, where there is one."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()
