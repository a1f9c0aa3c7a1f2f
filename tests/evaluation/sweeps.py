"""Sweeps made up from numbers, without a model."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.resolve import NTP
from setblock.decoding.settings.table import DecodingSettings, Method
from setblock.evaluation.result import Outcomes, Result

MADE = {
    "date": "2026-01-01T00:00:00+00:00",
    "hardware": {"cpu": "a", "gpu": None, "threads": 1},
    "versions": {"torch": "2"},
}
RUN: dict[str, Any] = {
    "model": {"name": "models/tiny", "fingerprint": "0123456789abcdef"},
    "task": {"name": "greetings", "options": {"split": "test"}, "num_examples": 4, "questions": "q"},
    "settings": {},
    "code": {"version": "0.1.0", "commit": None, "sources": "s"},
}
LENGTH = 20  # of every answer


def point(gamma: float, *, method: Method = "sbd", block_size: int = 16) -> DecodingSettings:
    lookup = 0 if method == "exact" else None
    return DecodingSettings(method, EntropyBounded(gamma), block_size, lookup)


def row(at: DecodingSettings, correct: Sequence[int], passes: Sequence[int], differing: Sequence[int]) -> Result:
    """A result whose passes are all block passes but for one commit; `sweep_of` puts it beside plain decoding's."""
    n = len(correct)
    outcomes = Outcomes(
        correct=tuple(correct),
        tokens=(LENGTH,) * n,
        prefill=(1,) * n,
        block=tuple(each - 1 for each in passes),
        commit=(1,) * n,
        differing=tuple(differing),
    )
    token_ids = [[1] * LENGTH] * n if at == NTP else None
    return Result(RUN, at, outcomes, seconds=1.0, made=MADE, token_ids=token_ids)


def sweep_of(ntp_correct: Sequence[int], rows: Sequence[Result], *, fingerprint: str | None = None) -> list[Result]:
    n = len(ntp_correct)
    run = {**RUN, "task": {**RUN["task"], "num_examples": n}}
    if fingerprint is not None:
        run["model"] = {**RUN["model"], "fingerprint": fingerprint}
    ntp = replace(row(NTP, ntp_correct, [LENGTH] * n, [0] * n), run=run)
    return [ntp, *(replace(each, run=run, ntp=ntp) for each in rows)]
