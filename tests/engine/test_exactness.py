"""Whatever else an engine decodes, each answer is the request's own: that of `generate`, by the same passes."""

import itertools
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from answers import drawn_settings
from families import FAMILIES, MODES, tiny_sbd
from running import Log, alone, assert_as_alone
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")


@pytest.fixture(scope="module")
def requests(texts: list[list[int]], trained_tokenizer: PreTrainedTokenizerBase) -> list[Request]:
    """A few dozen requests of all kinds; the tests run some of them, so that each need be answered alone but once."""
    rng = random.Random(5)
    drawn = [replace(drawn_settings(rng, trained_tokenizer), n=1) for _ in range(36)]
    return [Request("", texts[n % len(texts)], each) for n, each in enumerate(drawn)]


@given(data=st.data())
@settings(max_examples=12)
def test_any_mix_of_requests_under_any_limits(data: st.DataObject, sbd: SBDModel, requests: list[Request]) -> None:
    """Random arrivals, cancellations, budgets, and pools that hold hardly more than the largest request."""
    page = data.draw(st.sampled_from([1, 4, 16]), "page")
    limits = EngineLimits(
        max_num_seqs=data.draw(st.integers(1, 8), "max_num_seqs"),
        kv_tokens=data.draw(st.integers(96, 300), "kv_tokens"),
        max_num_batched_tokens=data.draw(st.sampled_from([3, 16, 64, 512]), "max_num_batched_tokens"),
        page_tokens=page,
    )
    chosen = data.draw(st.lists(st.integers(0, len(requests) - 1), min_size=1, max_size=8), "requests")
    arrivals = data.draw(st.lists(st.integers(0, 3), min_size=len(chosen), max_size=len(chosen)), "passes before each")
    cancels = data.draw(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 5)), max_size=2), "cancelled after")
    engine, log, wanted = Engine(sbd, limits), Log(), {}

    for number, (index, passes) in enumerate(zip(chosen, arrivals, strict=True)):
        for _ in range(passes):
            log.add(engine.step())
        wanted[str(number)] = replace(requests[index], id=str(number))
        engine.submit(wanted[str(number)])
    for number, passes in cancels:
        for _ in range(passes):
            log.add(engine.step())
        engine.cancel(str(number))
    log.run(engine)

    assert log.keys() == wanted.keys()
    for name, request in wanted.items():
        generation, theirs = log[name].generation, alone(sbd, request)
        assert generation is not None
        if generation.finish_reason == "cancelled":
            assert int(name) in {number for number, _ in cancels}
            assert generation.token_ids == theirs.token_ids[: generation.num_tokens]
            assert log[name].text == generation.text
        else:
            assert_as_alone(log[name], theirs)
    assert engine.figures.kv_tokens_used == 0
    assert engine.figures.running == engine.figures.waiting == 0


@pytest.mark.parametrize(("family", "mode"), list(zip(FAMILIES, itertools.cycle(MODES), strict=False)))
def test_every_family(
    family: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Sliding windows, soft-capping, learned positions, experts: packed and paged as padded."""
    sbd = tiny_sbd(family, trained_tokenizer, mode=mode, dtype=torch.float64)
    sbd.end_of_text_ids = ()
    sbd.model.config._experts_implementation = "eager"  # the fast ones have no float64
    base = DecodingSettings(max_new_tokens=14, block_size=5, sampler=EntropyBounded(4.0))
    wanted = [
        Request(f"{method} {n}", prompt, replace(base, method=method))
        for method, n, prompt in zip(("sbd", "exact", "ntp"), range(3), prompts, strict=True)
    ]
    engine = Engine(sbd, EngineLimits(max_num_batched_tokens=24, kv_tokens=128))
    for request in wanted:
        engine.submit(request)
    log = Log().run(engine)
    for request in wanted:
        assert_as_alone(log[request.id], alone(sbd, request))
