"""Time a forward pass over 1, 2, 4, ... tokens on this machine, of any runtime.

Knows feeds and clocks. Knows nothing of what is gained by a pass. Results are remembered by machine and model.
"""

import hashlib
import json
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from setblock.decoding.generate import open_batch
from setblock.decoding.settings import DecodingSettings
from setblock.evaluation.fingerprint import provenance
from setblock.model.feed import Feed
from setblock.model.named import cache_folder
from setblock.model.protocol import LanguageModel, Runner

SIZES = (1, 2, 4, 6, 8, 12, 16, 32)
"""Tokens of the passes that are timed."""
CACHED = 256
"""Positions that the cache holds meanwhile, or half of the context where that is shorter."""
_CALLS, _SECONDS = 5, 0.2  # of each size, the least


@dataclass(frozen=True)
class PassCosts:
    """Hold the seconds of a pass, with what decoding does around it.

    Attributes:
        seconds: of a pass over so many tokens of one request, the fastest of several.
        cached: positions that the cache held.
        fuses_commit: whether the runtime commits a block and runs the next one in one pass.
    """

    seconds: Mapping[int, float]
    cached: int
    fuses_commit: bool


def measured_costs(model: LanguageModel) -> PassCosts:
    """Time passes of one request. Takes a second or a few."""
    most = sys.maxsize if model.context_length is None else model.context_length
    cached = min(CACHED, most // 2)
    sizes = [size for size in SIZES if cached + size <= most]
    runner = model.runner(rows=1, capacity=cached + max(sizes))
    with torch.inference_mode():
        runner.logits(_feed(model, start=0, tokens=cached, in_block=False))
        seconds = {size: _fastest(runner, _feed(model, start=cached, tokens=size, in_block=size > 1)) for size in sizes}
    around = max(0.0, _seconds_of_step(model) - seconds[1])
    return PassCosts({size: each + around for size, each in seconds.items()}, cached, runner.fuses_commit)


def remembered_costs(model: LanguageModel, identity: Mapping[str, Any]) -> PassCosts:
    """Return those that were measured here before, or new ones, which are remembered.

    Args:
        identity: what distinguishes the model, and how it is run, from others.
    """
    told = json.dumps({"machine": provenance()["hardware"], **identity}, sort_keys=True, default=str)
    path = cache_folder() / f"pass-costs-{hashlib.sha256(told.encode()).hexdigest()[:16]}.json"
    with suppress(OSError, ValueError, KeyError, TypeError):  # there is none, or none that this release wrote
        found = json.loads(path.read_text())
        seconds = {int(size): float(each) for size, each in found["seconds"].items()}
        return PassCosts(seconds, int(found["cached"]), bool(found["fuses_commit"]))
    costs = measured_costs(model)
    with suppress(OSError):  # then it is measured again the next time
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(asdict(costs)))
    return costs


def identity_of(path: str | Path, **more: Any) -> dict[str, Any]:
    """Return what distinguishes a model's files, and how they are run, from others: names, sizes and times."""
    source = Path(path)
    files = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    told = [(str(each.resolve()), each.stat().st_size, each.stat().st_mtime_ns) for each in files if each.is_file()]
    return {"files": told or str(path), **more}


def _fastest(runner: Runner, feed: Feed) -> float:
    """Return the seconds of the fastest of several passes; each overwrites what the one before has left."""
    times: list[float] = []
    while len(times) < _CALLS or sum(times) < _SECONDS:
        started = time.perf_counter()
        runner.logits(feed).sum().item()  # waits for the device
        times.append(time.perf_counter() - started)
    return min(times)


def _seconds_of_step(model: LanguageModel) -> float:
    """Return the seconds of the fastest step of plain decoding."""
    settings = DecodingSettings(method="ntp", max_new_tokens=_CALLS + 1, min_new_tokens=_CALLS + 1)
    steps = open_batch(model, [[0]], [settings]).steps()
    times = [time.perf_counter()]
    times += [time.perf_counter() for _ in steps]
    return min(end - start for start, end in pairwise(times[1:]))


def _feed(model: LanguageModel, *, start: int, tokens: int, in_block: bool) -> Feed:
    """Return a pass of one row over `tokens` positions from `start` on, all outputs wanted but those of a prompt."""
    device, end = model.device, start + tokens
    positions = torch.arange(start, end, device=device)[None]
    block_start = start if in_block and model.facts is not None else end
    outputs = torch.arange(tokens, device=device)[None] if start else torch.full((1, 1), tokens - 1, device=device)
    return Feed(
        rows=torch.zeros(1, dtype=torch.long, device=device),
        batch=1,
        tokens=positions % model.vocab_size,
        positions=positions,
        block_start=torch.full((1,), block_start, device=device),
        ends=torch.full((1,), end, device=device),
        is_prefill=torch.full((1,), not start, device=device),
        is_real=torch.ones((1, tokens), dtype=torch.bool, device=device),
        visible=end,
        outputs=outputs,
        wanted=torch.ones_like(outputs, dtype=torch.bool),
        targets=positions[:, -outputs.shape[1] :] + 1,
        is_fixed=False,
    )
