"""Models whose requests can't be packed: the engine gives each request a row of the cache of its own."""

import random
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import assert_same
from families import CONTEXT, UNPACKABLE, tiny_sbd
from measuring.synchronisations import as_on_an_accelerator
from running import Log, alone, assert_as_alone
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.limits import EngineLimits
from setblock.engine.offline import answered, limits_for
from setblock.engine.request import Request
from setblock.errors import SetBlockError
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

SETTINGS = [
    DecodingSettings(method="ntp", prefill_chunk=5),
    DecodingSettings(method="exact", block_size=8, drafts="fixed", sampler=EntropyBounded(4.0)),
    DecodingSettings(method="exact", block_size=8, drafts="fixed", prompt_lookup=1),
    DecodingSettings(method="sbd", block_size=8, sampler=EntropyBounded(3.0)),
    DecodingSettings(method="sbd", block_size=4, sampler=EntropyBounded(3.0), temperature=1.0, seed=4),
]


@pytest.fixture(scope="module", params=UNPACKABLE)
def unpackable(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    sbd = tiny_sbd(request.param, trained_tokenizer, mode="unshifted, first token causal", dtype=torch.float64)
    sbd.end_of_text_ids = (0, 40, 41)
    assert sbd.needs_whole_rows
    return sbd


def requests_of(texts: list[list[int]], *, seed: int, count: int = 10) -> list[Request]:
    chosen = random.Random(seed)
    return [
        Request(str(number), text, replace(chosen.choice(SETTINGS), max_new_tokens=chosen.randint(1, 30)))
        for number, text in enumerate(chosen.choices([*texts, *(text[:5] for text in texts)], k=count))
        if len(text) + 30 <= CONTEXT
    ]


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("budget", [7, 1024])
def test_requests_that_come_and_go_get_what_they_get_alone(
    waits: bool, budget: int, unpackable: SBDModel, texts: list[list[int]]
) -> None:
    """In 3 rows, which later requests take over."""
    wanted = requests_of(texts, seed=budget)
    limits = EngineLimits(max_num_seqs=3, kv_tokens=1000, max_num_batched_tokens=budget)
    with as_on_an_accelerator() if waits else nullcontext():
        engine, log = Engine(unpackable, limits), Log()
        assert engine.figures.kv_tokens_total == 3 * CONTEXT
        for number, request in enumerate(wanted):
            engine.submit(request)
            if number % 2:
                log.add(engine.step())
        if len(wanted) > 6:
            engine.cancel(wanted[-1].id)
        log.run(engine)
    assert engine.figures.kv_tokens_used == 0
    for request in wanted[:-1]:
        assert_as_alone(log[request.id], alone(unpackable, request))


def test_a_budget_of_tokens_holds_for_prompts_too(unpackable: SBDModel, texts: list[list[int]]) -> None:
    engine, most = Engine(unpackable, EngineLimits(max_num_batched_tokens=6)), 0
    for number, text in enumerate(texts[:4]):
        engine.submit(Request(str(number), text[:20], DecodingSettings(method="ntp", max_new_tokens=2)))
    while not engine.is_idle:
        before = engine.figures
        engine.step()
        after = engine.figures
        most = max(most, after.prefill_tokens + after.block_tokens - before.prefill_tokens - before.block_tokens)
    assert most == 6


@pytest.mark.parametrize(
    ("limits", "rows", "most"),
    [
        ({}, 32, CONTEXT),
        ({"kv_tokens": 3 * CONTEXT + 5}, 3, CONTEXT),
        ({"kv_tokens": 100}, 1, 100),
        ({"kv_tokens": 100, "max_model_len": 30}, 3, 30),
        ({"kv_tokens": 100, "max_model_len": 30, "max_num_seqs": 2}, 2, 30),
    ],
)
def test_a_row_holds_the_longest_request(
    limits: dict[str, int], rows: int, most: int, unpackable: SBDModel, texts: list[list[int]]
) -> None:
    engine = Engine(unpackable, EngineLimits(**limits))
    assert engine.max_model_len == most
    assert engine.figures.kv_tokens_total == rows * most
    settings = DecodingSettings(method="ntp", max_new_tokens=most - 5)
    engine.submit(Request("fits", texts[0][:5], settings))
    if most < CONTEXT:
        with pytest.raises(
            SetBlockError, match=f"may take {most + 1} tokens .* {most}: .* enlarge (kv_tokens|max_model_len)"
        ):
            engine.submit(Request("a", texts[0][:5], replace(settings, max_new_tokens=most - 4)))
    Log().run(engine)


def test_what_a_failed_request_left_in_its_row_spoils_no_other(
    trained_tokenizer: PreTrainedTokenizerBase, texts: list[list[int]]
) -> None:
    """Of a shorter one that runs beside a longer one, and so has keys behind its end read."""
    sbd = tiny_sbd("gptj", trained_tokenizer, dtype=torch.float64)
    sbd.end_of_text_ids = ()
    assert sbd.needs_whole_rows
    fine = [Request(f"fine {n}", texts[0][:6], replace(each, max_new_tokens=10 + n)) for n, each in enumerate(SETTINGS)]
    long = Request("long", texts[2][:60], replace(SETTINGS[0], max_new_tokens=60))
    expected = [alone(sbd, each) for each in (*fine, long)]
    seen = {token for each in (*fine, long) for token in each.prompt} | {t for each in expected for t in each.token_ids}
    poison = next(token for token in range(100, 300) if token not in seen)
    with torch.no_grad():
        sbd.model.get_input_embeddings().weight[poison] = torch.nan
    engine, log = Engine(sbd, EngineLimits(max_num_seqs=2)), Log()
    engine.submit(long)
    engine.submit(Request("bad", [*texts[0][:30], *[poison] * 10], SETTINGS[0]))
    for each in fine:
        engine.submit(each)
    log.run(engine)
    bad = log["bad"].generation
    assert bad is not None
    assert bad.finish_reason == "error"
    for each, answer in zip((*fine, long), expected, strict=True):
        found = log[each.id].generation
        assert found is not None
        assert_same(found, answer)


def test_offline_all_that_may_run_at_once_have_rows(unpackable: SBDModel, texts: list[list[int]]) -> None:
    wanted = requests_of(texts, seed=3)
    limits = limits_for(unpackable, wanted, concurrency=4)
    engine = Engine(unpackable, limits)
    assert engine.figures.kv_tokens_total == 4 * engine.max_model_len
    found = dict(answered(engine, wanted))
    for each in wanted:
        assert_same(found[each.id], alone(unpackable, each))
