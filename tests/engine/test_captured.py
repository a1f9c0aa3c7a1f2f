"""Captured passes give what any pass gives, have few sizes, and make the host wait for nothing.

A tape stands for the CUDA graph (`tape.Tape`): it refuses what a capture refuses and replays without any Python of ours.
"""

import random
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from answers import drawn_settings
from families import FAMILIES, GPT_OSS, MODES, save_with_random_adapter, tiny_sbd
from measuring.synchronisations import Synchronisations, as_on_an_accelerator
from measuring.tape import Refused, Tape
from running import Log, alone, assert_as_alone
from setblock.decoding.samplers import SAMPLERS, EntropyBounded, FixedCount
from setblock.decoding.settings.resolve import check_rows
from setblock.decoding.settings.table import DecodingSettings
from setblock.decoding.state.joining import open_state
from setblock.decoding.state.table import StateTable
from setblock.decoding.step.choice import is_own
from setblock.engine import captured, launcher
from setblock.engine import engine as engine_module
from setblock.engine.captured import CapturedPasses, PassSize, traits_of
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.errors import SetBlockWarning
from setblock.model.loading.loading import load
from setblock.model.sbd_model import SBDModel

KINDS = {
    "ntp": DecodingSettings(method="ntp"),
    "ntp, drawn": DecodingSettings(method="ntp", temperature=0.8, top_k=20, top_p=0.9, min_p=0.01, seed=3),
    "ntp, penalty": DecodingSettings(method="ntp", repetition_penalty=1.3),
    **{f"sbd, {name}": DecodingSettings(method="sbd", sampler=kind(), block_size=8) for name, kind in SAMPLERS.items()},
    "sbd, drawn": DecodingSettings(method="sbd", sampler=EntropyBounded(3.0), block_size=8, temperature=1.0, seed=5),
    "exact": DecodingSettings(method="exact", sampler=EntropyBounded(4.0), block_size=8, drafts="fixed"),
    "exact, copies": DecodingSettings(method="exact", block_size=8, prompt_lookup=1, drafts="fixed"),
    "exact, adaptive": DecodingSettings(method="exact", block_size=8, prompt_lookup=2),
    "exact, drawn": DecodingSettings(method="exact", block_size=4, temperature=1.0, repetition_penalty=1.1, seed=7),
}


@pytest.fixture(autouse=True)
def _accelerator() -> Iterator[None]:
    with as_on_an_accelerator():
        yield


def answered(sbd: SBDModel, requests: list[Request], **limits: int) -> tuple[Engine, Log]:
    """Run requests, of which some have to wait, so that rows join and leave."""
    engine = Engine(sbd, EngineLimits(**{"max_num_seqs": 3, **limits}), recorder=Tape)
    for request in requests:
        engine.submit(request)
    return engine, Log().run(engine)


def assert_captured(engine: Engine) -> None:
    """All passes but those over prompts were captured, in sizes that are powers of two."""
    captured = engine.captured
    assert captured is not None
    assert captured.reason is None
    assert captured.sizes
    for size in captured.sizes:
        assert all(number & (number - 1) == 0 for number in size), size


CAPTURED: dict[str, Any] = {"logit_bias": {}, "banned_tokens": (), "min_new_tokens": 0, "logprobs": None}
"""Settings without what is not captured, besides samplers of others."""

longest = pytest.mark.usefixtures("longest_drafts")


@longest
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("mode", MODES)
def test_each_kind_of_pass_is_captured_and_gives_the_same(
    name: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase, texts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode, dtype=torch.float64)
    sbd.end_of_text_ids = (0, 40, 41)
    requests = [Request(str(n), text, replace(KINDS[name], max_new_tokens=24 + n)) for n, text in enumerate(texts[:5])]
    engine, log = answered(sbd, requests)
    assert_captured(engine)
    for request in requests:
        assert_as_alone(log[request.id], alone(sbd, request))


@longest
def test_requests_of_all_kinds_in_one_pass(sbd: SBDModel, texts: list[list[int]]) -> None:
    requests = [
        Request(name, text, replace(each, max_new_tokens=30))
        for (name, each), text in zip(KINDS.items(), texts * 3, strict=False)
    ]
    engine, log = answered(sbd, requests, max_num_seqs=6)
    assert_captured(engine)
    for request in requests:
        assert_as_alone(log[request.id], alone(sbd, request))


@longest
@pytest.mark.parametrize("family", [*FAMILIES, "gpt_oss"])
def test_every_family(family: str, trained_tokenizer: PreTrainedTokenizerBase, texts: list[list[int]]) -> None:
    """Sliding windows, soft-capping, sinks, learned positions, experts."""
    of_family = GPT_OSS if family == "gpt_oss" else {}
    sbd = tiny_sbd(family, trained_tokenizer, mode="shifted", dtype=torch.float64, **of_family)
    sbd.end_of_text_ids = (0, 40)
    names = ["exact, adaptive", "sbd, drawn", "ntp"]
    requests = [
        Request(name, text, replace(KINDS[name], max_new_tokens=12)) for name, text in zip(names, texts, strict=False)
    ]
    sbd.model.config._experts_implementation = "eager"  # the fast ones have no float64
    reads = family in ("mixtral", "qwen3_moe", "gpt_oss")  # which experts are needed
    with pytest.warns(SetBlockWarning, match="passes are not captured") if reads else nullcontext():
        engine, log = answered(sbd, requests)
    if not reads:
        assert_captured(engine)
    for request in requests:
        assert_as_alone(log[request.id], alone(sbd, request))


@longest
@pytest.mark.parametrize("family", ["mixtral", "qwen3_moe", "gpt_oss"])
def test_experts_as_models_are_loaded(
    family: str, trained_tokenizer: PreTrainedTokenizerBase, texts: list[list[int]]
) -> None:
    """Transformers' `grouped_mm` does not read on the host which experts are needed."""
    of_family = GPT_OSS if family == "gpt_oss" else {}
    sbd = tiny_sbd(family, trained_tokenizer, mode="shifted", **of_family)
    sbd.end_of_text_ids = (0, 40)
    assert sbd.model.config._experts_implementation == "grouped_mm"
    names = ["exact, adaptive", "sbd, drawn", "ntp"]
    requests = [
        Request(name, text, replace(KINDS[name], max_new_tokens=12)) for name, text in zip(names, texts, strict=False)
    ]
    engine, log = answered(sbd, requests)
    assert_captured(engine)
    for request in requests:
        generation = log[request.id].generation
        assert generation is not None
        assert generation.token_ids == alone(sbd, request).token_ids


@longest
@given(data=st.data())
@settings(max_examples=10)
def test_any_mix_of_requests_under_any_limits(
    data: st.DataObject, sbd: SBDModel, texts: list[list[int]], trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Captured or not, with preemption, cancellations and prefixes in common."""
    rng = random.Random(data.draw(st.integers(0, 10**6), "seed"))
    count, is_captured = data.draw(st.integers(1, 7), "requests"), data.draw(st.booleans(), "is_captured")
    limits = EngineLimits(
        max_num_seqs=data.draw(st.integers(1, 5), "max_num_seqs"),
        kv_tokens=data.draw(st.integers(96, 300), "kv_tokens"),
        max_num_batched_tokens=data.draw(st.sampled_from([3, 64, 512]), "max_num_batched_tokens"),
        page_tokens=data.draw(st.sampled_from([1, 4, 16]), "page_tokens"),
    )
    with as_on_an_accelerator():
        engine, log, wanted, cancelled = Engine(sbd, limits, recorder=Tape), Log(), {}, set()
        for number in range(count):
            each = replace(drawn_settings(rng, trained_tokenizer), n=1)
            if is_captured:
                each = replace(each, **CAPTURED)
                each = each if is_own(each.sampler) else replace(each, sampler=EntropyBounded(3.0))
            wanted[str(number)] = Request(str(number), rng.choice(texts), each)
            engine.submit(wanted[str(number)])
            for _ in range(rng.randrange(6)):
                log.add(engine.step())
            if number > 0 and rng.random() < 0.2:
                cancelled.add(name := rng.choice(sorted(wanted)))
                engine.cancel(name)
        log.run(engine)
    assert engine.captured is not None
    assert engine.captured.reason is None
    for name, request in wanted.items():
        generation = log[name].generation
        assert generation is not None
        if generation.finish_reason == "cancelled":
            assert name in cancelled
            assert generation.token_ids == alone(sbd, request).token_ids[: generation.num_tokens]
        else:
            assert_as_alone(log[name], alone(sbd, request))
    assert engine.figures.kv_tokens_used == 0


@longest
def test_the_pass_that_was_captured_first_makes_room(
    sbd: SBDModel, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each value of a sampler's parameter has passes of its own, and clients or a sweep may give any number of values."""
    monkeypatch.setattr(captured, "MOST_CAPTURED", 3)
    engine = Engine(sbd, recorder=Tape)
    for number in range(12):
        sampler = EntropyBounded(1.0 + number % 4)
        settings = DecodingSettings(method="sbd", sampler=sampler, block_size=8, max_new_tokens=12)
        request = Request("a", texts[0], settings)
        engine.submit(request)
        assert_as_alone(Log().run(engine)["a"], alone(sbd, request))
        assert engine.captured is not None
        assert 0 < engine.captured.num_captured <= 3


@pytest.mark.parametrize("steps", range(6))
def test_a_request_may_be_cancelled_at_any_time(steps: int, sbd: SBDModel, texts: list[list[int]]) -> None:
    """Also while the pass is in flight that ends it."""
    engine, log = Engine(sbd, recorder=Tape), Log()
    request = Request("a", texts[0], replace(KINDS["ntp"], max_new_tokens=4))
    engine.submit(request)
    for _ in range(steps):
        log.add(engine.step())
    engine.cancel("a")
    generation = log.run(engine)["a"].generation
    assert generation is not None
    assert generation.token_ids == alone(sbd, request).token_ids[: generation.num_tokens]
    assert engine.figures.kv_tokens_used == 0


@pytest.mark.parametrize("seed", range(3))
def test_drafts_of_any_length(seed: int, sbd: SBDModel, texts: list[list[int]]) -> None:
    """As they are chosen by how long passes take, and read before the next pass or not: the text is the same."""
    rng = random.Random(seed)
    requests = [
        Request(
            str(number),
            rng.choice(texts),
            DecodingSettings(
                method="exact",
                block_size=rng.choice([2, 5, 8, 40]),
                prompt_lookup=rng.choice([0, 1, 2]),
                temperature=rng.choice([0.0, 1.0]),
                seed=number,
                max_new_tokens=rng.randrange(1, 50),
            ),
        )
        for number in range(8)
    ]
    engine, log = answered(sbd, requests, max_num_seqs=4, kv_tokens=400, page_tokens=4)
    assert_captured(engine)
    for request in requests:
        generation = log[request.id].generation
        assert generation is not None
        assert generation.token_ids == alone(sbd, request).token_ids


def test_drafts_are_as_long_as_pays_by_what_captures_cost(
    trained_tokenizer: PreTrainedTokenizerBase, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass of each size is timed when it is captured; what passes take that are not captured says nothing."""
    monkeypatch.setattr(launcher, "FREE_TOKENS", 0)  # each pass is read before the next one is chosen
    settings, fed, real = DecodingSettings(method="exact", block_size=8, max_new_tokens=60), {}, engine_module._measured
    for cost in (0.0, 1.0):
        measured: list[float] = []

        def as_if(model: SBDModel, size: PassSize, seconds: float, *, cost: float = cost, to: Any = measured) -> None:
            to.append(seconds)
            real(model, size, 1.0 + cost * size.queries)

        sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
        sbd.end_of_text_ids = ()
        with monkeypatch.context() as patch:
            patch.setattr(engine_module, "_measured", as_if)
            engine, _ = answered(sbd, [Request("a", texts[0], settings)])
        assert engine.captured is not None
        assert len(measured) == len(engine.captured.by_size())
        assert min(measured) > 0
        fed[cost] = sum(size.queries * count for size, count in engine.captured.sizes.items())
    assert fed[0.0] > 2 * fed[1.0]


def test_the_host_waits_for_nothing_while_a_pass_runs(sbd: SBDModel, texts: list[list[int]]) -> None:
    """The next pass is launched before one is read, also after the first answer has ended."""
    engine = Engine(sbd, recorder=Tape)
    for number, tokens in enumerate((20, 60)):
        engine.submit(Request(str(number), texts[number], replace(KINDS["ntp"], max_new_tokens=tokens)))
    counted: list[int] = []
    with Synchronisations() as waits:
        while not engine.is_idle:
            before = waits.total
            engine.step()
            counted.append(waits.total - before)
    assert len(counted) > 50
    assert sum(counted[:4]) > 0  # the prompt's pass is read, and the first one of a size compared
    assert sum(each > 0 for each in counted[4:]) <= 4, counted  # also when an answer ends, or a pass has a new size


class WrongTape(Tape):
    """Replays one operation too few: the last that changes a tensor of the table."""

    def replay(self) -> None:
        self.operations, whole = self.operations[:-3], self.operations
        super().replay()
        self.operations = whole


class NoTape(Tape):
    def capture(self, run: Callable[[], Any]) -> Any:
        raise RuntimeError("no graph here\nand more")


@longest
@pytest.mark.parametrize(
    ("tape", "reason"), [(WrongTape, "a replay did not give what the pass gives"), (NoTape, "no graph here")]
)
def test_a_capture_that_goes_wrong_is_noticed_and_passes_stay_as_they_were(
    tape: type[Tape], reason: str, sbd: SBDModel, texts: list[list[int]]
) -> None:
    engine = Engine(sbd, recorder=tape)
    requests = [Request(name, texts[0], replace(KINDS[name], max_new_tokens=20)) for name in ("exact", "sbd, drawn")]
    for request in requests:
        engine.submit(request)
    with pytest.warns(SetBlockWarning, match=f"passes are not captured.*{reason}"):
        log = Log().run(engine)
    assert engine.captured is not None
    assert engine.captured.reason == reason
    for request in requests:
        assert_as_alone(log[request.id], alone(sbd, request))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda x: x.sum().item(),
        lambda x: x[x > 0],
        lambda x: x.nonzero(),
        lambda x: x + torch.tensor([1.0]),
        lambda x: x.masked_select(x > 0),
    ],
)
def test_the_tape_refuses_what_a_capture_refuses(wrong: Callable[[torch.Tensor], Any]) -> None:
    with pytest.raises(Refused):
        Tape().capture(lambda: wrong(torch.ones(3)))


def test_a_tape_replays_with_new_values() -> None:
    given_, tape = torch.ones(3), Tape()
    found = tape.capture(lambda: (given_ * 2).cumsum(0)[1:] + 1)
    given_.fill_(5)
    tape.replay()
    assert found.tolist() == [21, 31]


def test_only_own_samplers_are_captured() -> None:
    assert is_own(FixedCount(2))
    assert is_own(None)
    assert not is_own(object())  # type: ignore[arg-type]


@longest
def test_an_adapter_on_the_block(
    tmp_path: Any, trained_tokenizer: PreTrainedTokenizerBase, texts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    save_with_random_adapter(sbd, tmp_path)
    sbd = load(tmp_path, dtype=torch.float64)
    sbd.end_of_text_ids = (0, 40)
    requests = [
        Request(name, text, replace(KINDS[name], max_new_tokens=20))
        for name, text in zip(("exact", "ntp"), texts, strict=False)
    ]
    engine, log = answered(sbd, requests)
    assert_captured(engine)
    for request in requests:
        assert_as_alone(log[request.id], alone(sbd, request))


@pytest.mark.parametrize("name", KINDS)
def test_a_pass_makes_all_on_the_device_of_its_model(
    name: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """On the device `meta`, a tensor of the CPU is an error, as it is on a GPU."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    checked = check_rows(sbd, prompts[:2], [KINDS[name]] * 2)
    sbd.model.to("meta")
    table = StateTable(2, sbd_config=sbd.sbd_config, device=sbd.device)
    runner = sbd.runner(pages=64, page_tokens=16, rows=2)
    captured = CapturedPasses(
        table,
        sbd.static_passes(runner, rows=3, positions=512),
        vocab_size=sbd.vocab_size,
        recorder=Tape,
    )
    for row, (prompt, params) in enumerate(zip(checked.prompts, checked.params, strict=True)):
        state = open_state([prompt], [params], sbd_config=sbd.sbd_config, device=sbd.device)
        table.write(row, state)
    given_ = torch.zeros((4, 4), dtype=torch.long, device="meta")
    for queries in (1, 16):
        requests = [*checked.params, *checked.params]
        traits = traits_of(requests)
        assert traits is not None
        with torch.inference_mode():
            outputs = captured._pass(given_, PassSize(4, queries, 256), traits, requests)
        assert outputs.values.is_meta
