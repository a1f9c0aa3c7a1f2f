"""Keep what was timed, a line for each answer, so that a run that was ended continues where it stopped.

Knows answers and a file. Knows nothing of who gave them.
"""

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_RESAMPLES = 2_000


@dataclass(frozen=True)
class Sample:
    """Hold one timed answer.

    Attributes:
        contender: who gave it.
        request, round: numbers, from 0.
        seconds: of the whole answer.
        prefill_seconds: None where it can't be separated.
        token_ids: of the answer, end-of-text included.
        passes: of the model after the prefill; None where nobody counts them.
    """

    contender: str
    request: int
    round: int
    seconds: float
    prefill_seconds: float | None
    token_ids: list[int]
    passes: int | None


class Samples:
    """Hold samples, and write each to a file at once.

    Args:
        path: of the file; None keeps them in memory.
        identity: what was asked and where. A file of another identity is refused.

    Raises:
        SystemExit: the file has another identity.
    """

    def __init__(self, path: Path | None = None, identity: Mapping[str, Any] | None = None) -> None:
        self._path = path
        self._found: dict[tuple[str, int, int], Sample] = {}
        if path is None:
            return
        if path.is_file():
            first, *lines = path.read_text(encoding="utf-8").splitlines()
            if json.loads(first) != identity:
                raise SystemExit(
                    f"{path} holds part of another run, {first}: delete it, or repeat that run to continue it"
                )
            for line in lines:
                self._keep(Sample(**json.loads(line)))
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(identity) + "\n", encoding="utf-8")

    def __contains__(self, key: tuple[str, int, int]) -> bool:
        return key in self._found

    def add(self, sample: Sample) -> None:
        """Keep one more."""
        self._keep(sample)
        if self._path is not None:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(sample)) + "\n")

    def of(self, contender: str, *, round: int) -> list[Sample]:
        """Return a contender's samples of one round, by request."""
        own = [each for each in self._found.values() if (each.contender, each.round) == (contender, round)]
        return sorted(own, key=lambda each: each.request)

    def _keep(self, sample: Sample) -> None:
        self._found[sample.contender, sample.request, sample.round] = sample


def ratio_interval(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float]:
    """Return the 95% interval of a ratio of sums over requests, by the bootstrap: both have one number for each request."""
    rng, places = random.Random(0), range(len(numerators))
    ratios = []
    for _ in range(_RESAMPLES):
        drawn = rng.choices(places, k=len(places))
        ratios.append(sum(numerators[each] for each in drawn) / sum(denominators[each] for each in drawn))
    ratios.sort()
    return ratios[int(0.025 * _RESAMPLES)], ratios[int(0.975 * _RESAMPLES)]
