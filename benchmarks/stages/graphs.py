"""Captured passes of the engine: that they are right, wait for nothing, and how long one launch takes.

On a CPU, in miniature, a tape stands for the CUDA graph.
"""

import argparse
import itertools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import partial
from typing import Any

import torch

from measuring.checks import lively_model
from measuring.hardware import DEVICE, measured_hardware, roofline_hardware
from measuring.subjects import SIZES, name_tokens, random_model, random_prompt
from measuring.synchronisations import as_on_an_accelerator
from measuring.tape import Tape
from measuring.timing import interleaved, spread
from measuring.traffic import Traffic
from setblock.decoding.samplers import FixedCount
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.step.choice import Kernel
from setblock.decoding.step.reading import fault_of, read_by_operations
from setblock.engine.captured import CudaGraph, PassSize, Recorder
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.model.attention.paged_attention import Kind, PagedInput, paged_attention
from setblock.model.loading.loading import load
from setblock.model.sbd_model import SBDModel
from stages.piece import Pieces, once

RECORDER: Callable[[], Recorder] = CudaGraph if DEVICE.type == "cuda" else Tape
PAGE = 128  # positions: FlexAttention's blocks of keys


def graph_pieces(options: argparse.Namespace) -> Pieces:
    """Yield the checks and times of captured passes, the most valuable first."""
    large = once(lambda: random_model(SIZES[options.size], dtype=getattr(torch, options.dtype), block_size=16))
    cached, tokens = (32, 12) if options.quick else (1024, 200)
    rows = (1, 2) if options.quick else (1, 32)
    yield "no pass waits", partial(_waits, options)
    for name, temperature in (("float32", 0.0), ("drawn", 0.8)):
        size = "tiny" if options.quick else "100m"
        yield f"exact is plain, {name}", partial(_is_plain, size, tokens=tokens, temperature=temperature)
    yield f"passes of {rows[0]} row", lambda: _launches(large(), rows[0], cached, options)
    kinds: tuple[Kind, ...] = ("gather",) if options.quick else ("flex", "triton", "gather")
    yield "attention", partial(_attention, kinds, rows, (cached,) if options.quick else (1024, 8192), options)
    yield f"passes of {rows[1]} rows", lambda: _launches(large(), rows[1], cached, options)
    for count in (1, 2) if options.quick else (1, 8, 32):
        yield f"SmolLM2 in the engine, {count} requests", partial(_served, count, options)
    yield "profile", lambda: _profile(large(), cached, options)
    yield "draws", partial(_draws, rows[1], options)


def _settings(kind: str, tokens: int) -> DecodingSettings:
    block = DecodingSettings(method="sbd", block_size=4 if DEVICE.type == "cpu" else 16, sampler=FixedCount(3))
    settings = {
        "ntp": DecodingSettings(method="ntp"),
        "sbd": block,
        "exact": replace(block, method="exact", drafts="fixed"),
    }
    return replace(settings[kind], max_new_tokens=tokens)


def _engine(
    sbd: SBDModel, rows: int, *, cached: int, tokens: int, recorder: Any, kind: str, temperature: float = 0.0
) -> Engine:
    """Return an engine with requests that are about to be decoded."""
    name_tokens(sbd)
    sbd.cuda_graphs = recorder is not None and DEVICE.type == "cuda"  # then its logits are read by one kernel
    room = -(-(cached + tokens + 64) // PAGE) * PAGE
    engine = Engine(sbd, EngineLimits(max_num_seqs=rows, kv_tokens=rows * room, page_tokens=PAGE), recorder=recorder)
    for number in range(rows):
        settings = replace(_settings(kind, tokens), temperature=temperature, seed=number)
        engine.submit(Request(str(number), random_prompt(sbd, cached - number % 3), settings))
    return engine


def _answers(engine: Engine) -> dict[str, list[int]]:
    done: dict[str, list[int]] = {}
    while not engine.is_idle:
        done |= {each.id: each.generation.token_ids for each in engine.step() if each.generation is not None}
    return done


@contextmanager
def _accelerated() -> Iterator[None]:
    with as_on_an_accelerator() if DEVICE.type == "cpu" else nullcontext():
        yield


def _waits(options: argparse.Namespace) -> dict[str, Any]:
    """Run passes, also after the first answer has ended, under PyTorch's debug mode, in which a wait is an error."""
    sbd = random_model(SIZES["tiny"], dtype=torch.float32, block_size=16)
    with _accelerated():
        engine = _engine(sbd, 2, cached=40, tokens=60, recorder=RECORDER, kind="ntp")
        for _ in range(12):
            engine.step()
        if DEVICE.type == "cuda":
            torch.cuda.set_sync_debug_mode("error")
        try:
            for _ in range(20):
                engine.step()
        finally:
            if DEVICE.type == "cuda":
                torch.cuda.set_sync_debug_mode("default")
    return {"passed": True, **_captured(engine)}


def _captured(engine: Engine) -> dict[str, Any]:
    assert engine.captured is not None
    sizes = {f"{size.rows} x {size.queries} x {size.keys}": count for size, count in engine.captured.sizes.items()}
    return {"reason": engine.captured.reason, "passes by size": sizes}


def _is_plain(size: str, *, tokens: int, temperature: float) -> dict[str, Any]:
    """Compare the texts of captured exact passes, and of captured plain ones, with those of plain passes as they were. A draw
    of these may differ by rounding, so that at a temperature above 0 the captured ones are compared with each other only."""
    sbd = lively_model(size, torch.float32)
    with _accelerated():
        made = partial(_engine, sbd, 3, cached=40, tokens=tokens, temperature=temperature)
        expected = _answers(made(recorder=None, kind="ntp"))
        engine = made(recorder=RECORDER, kind="exact")
        found = {"exact": _answers(engine), "plain": _answers(made(recorder=RECORDER, kind="ntp"))}
    same = {name: answers == expected for name, answers in found.items()}
    passed = found["exact"] == found["plain"] if temperature else all(same.values())
    return {"passed": passed, "same": same, **_captured(engine)}


def _launches(sbd: SBDModel, rows: int, cached: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time replays of each size, and compare them with the time that reading the weights takes."""
    dtype = getattr(torch, options.dtype)
    hardware = (
        roofline_hardware(dtype, quick=True) if options.quick else measured_hardware(dtype, device=DEVICE, seconds=1)
    )
    weights = sum(each.numel() * each.element_size() for each in sbd.model.parameters())
    found: dict[str, Any] = {"weights over bandwidth": weights / hardware.bandwidth}
    with _accelerated():
        for kind in ("ntp", "sbd"):
            engine = _engine(sbd, rows, cached=cached, tokens=64, recorder=RECORDER, kind=kind)
            started = time.perf_counter()
            while not engine.is_idle and engine.figures.passes < (12 if options.quick else 40):
                engine.step()
            found[f"{kind}, reason"] = _captured(engine)["reason"]
            found[f"{kind}, seconds to capture"] = time.perf_counter() - started
            assert engine.captured is not None
            replays = {_name(size): each.recorder.replay for size, each in engine.captured.by_size().items()}
            for name, each in interleaved(replays, repeats=options.repeats).items():
                found[f"{kind}, {name}"] = asdict(each)
            del engine
    return found


def _name(size: PassSize) -> str:
    return f"{size.queries} tokens"


def _attention(
    kinds: tuple[Kind, ...], rows: tuple[int, ...], lengths: tuple[int, ...], options: argparse.Namespace
) -> dict[str, Any]:
    """Time one layer's attention of an 8B model: 32 heads of 128, 8 of them for keys, blocks of 16."""
    heads, groups, size, queries = (4, 2, 16, 4) if options.quick else (32, 8, 128, 16)
    dtype, actions = getattr(torch, options.dtype), {}
    for count, length in itertools.product(rows, lengths):
        pages = -(-length // PAGE)
        table = torch.arange(count * pages, device=DEVICE).view(count, pages)
        keys, values = (torch.randn(count * pages, PAGE, groups, size, device=DEVICE, dtype=dtype) for _ in range(2))
        query = torch.randn(count, heads, queries, size, device=DEVICE, dtype=dtype)
        positions = torch.arange(length - queries, length, device=DEVICE).expand(count, -1)
        given = PagedInput(table, positions, torch.full_like(positions, length), pages=count * pages, page_tokens=PAGE)
        for kind in kinds:
            attention = paged_attention(DEVICE, of_group=heads // groups, kind=kind)
            places, mask = attention.places(given), attention.mask(given, None)
            actions[f"{kind}, {count} rows, {length} keys"] = partial(
                attention.attend, query, keys, values, places, mask
            )
    with torch.inference_mode():
        return {name: asdict(each) for name, each in interleaved(actions, repeats=options.repeats).items()}


def _served(count: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time the engine's passes with a small model, captured and not."""
    if options.quick:
        sbd = random_model(SIZES["tiny"], dtype=torch.float32, block_size=16)
    else:
        sbd = load("smollm2", dtype=torch.bfloat16, device=str(DEVICE))
    sbd.end_of_text_ids = ()
    found = {}
    with _accelerated():
        for name, recorder in (("eager", None), ("captured", RECORDER)):
            engine = _engine(
                sbd,
                count,
                cached=32 if options.quick else 512,
                tokens=24 if options.quick else 160,
                recorder=recorder,
                kind="ntp",
            )
            seconds = []
            while not engine.is_idle:
                started = time.perf_counter()
                engine.step()
                seconds.append(time.perf_counter() - started)
            found[name] = asdict(spread(seconds[len(seconds) // 2 :]))
    return found


def _profile(sbd: SBDModel, cached: int, options: argparse.Namespace) -> dict[str, Any]:
    """Count the kernels of a replay, and how long the device is idle in it."""
    with _accelerated():
        engine = _engine(sbd, 1, cached=cached, tokens=64, recorder=RECORDER, kind="sbd")
        for _ in range(8 if options.quick else 20):
            engine.step()
        assert engine.captured is not None
        found = {}
        for size, each in engine.captured.by_size().items():
            if DEVICE.type != "cuda":
                assert isinstance(each.recorder, Tape)
                found[_name(size)] = {"operations": len(each.recorder.operations)}
                continue
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
                each.recorder.replay()
                torch.cuda.synchronize()
            kernels = sorted((event.time_range.start, event.time_range.end) for event in profile.events())
            busy, whole = sum(end - start for start, end in kernels), kernels[-1][1] - kernels[0][0]
            found[_name(size)] = {"kernels": len(kernels), "idle": 1 - busy / whole, "microseconds": whole}
    return found


def _draws(rows: int, options: argparse.Namespace) -> dict[str, Any]:
    """Time all that is read of the logits of 16 tokens a row, of 128k: the most likely token, the certainty and the draw. Count
    the bytes that PyTorch's operations move for it; the kernel reads each logit once, 4 bytes."""
    vocabulary = 300 if options.quick else 128_256
    found: dict[str, Any] = {}
    actions: dict[str, Callable[[], object]] = {}
    kernels: dict[str, Kernel] = {}
    if DEVICE.type == "cuda":
        from setblock.decoding.step.reading_kernel import read_by_kernel  # needs Triton

        kernels["kernel"] = read_by_kernel
        fault = fault_of(read_by_kernel, DEVICE)
        found |= {"passed": fault is None, "fault": fault}
    for count, heat in itertools.product((1, min(8, rows), rows), (0.0, 1.0)):
        logits = torch.randn(count, 16, vocabulary, device=DEVICE)
        temperatures, seeds = torch.full((count,), heat, device=DEVICE), torch.arange(count, device=DEVICE)
        positions = torch.arange(16, device=DEVICE).expand(count, -1)
        given: dict[str, Kernel] = {"PyTorch": partial(read_by_operations, is_greedy=not heat), **kernels}
        for name, kernel in given.items():
            case = f"{name}, {count} rows, temperature {heat:g}"
            actions[case] = partial(kernel, logits, temperatures, seeds, positions)
        with Traffic(vocabulary) as traffic:
            actions[f"PyTorch, {count} rows, temperature {heat:g}"]()
        found[f"bytes of a logit by PyTorch, temperature {heat:g}"] = traffic.total / logits.numel()
    return found | {name: asdict(each) for name, each in interleaved(actions, repeats=options.repeats).items()}
