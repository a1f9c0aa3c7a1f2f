"""What an engine promises beside the answers: places, pages, errors and figures."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from running import Log, alone, assert_as_alone
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.generate import stream
from setblock.engine.limits import EngineLimits
from setblock.engine.request import QueueFull, Request
from setblock.errors import ParameterError, SetBlockError
from setblock.model.runners import packed_runner
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

SLOW = DecodingSettings(method="ntp", max_new_tokens=40, stop_token_ids=())


@pytest.fixture
def endless(sbd: SBDModel, monkeypatch: pytest.MonkeyPatch) -> SBDModel:
    """Answers run to their limit."""
    monkeypatch.setattr(sbd, "end_of_text_ids", ())
    return sbd


def test_an_idle_engine_does_nothing(sbd: SBDModel) -> None:
    engine = Engine(sbd)
    assert engine.is_idle
    assert engine.step() == []
    assert engine.figures.passes == 0


def test_progress_is_that_of_stream(sbd: SBDModel) -> None:
    """Text by text and event by event."""
    settings = DecodingSettings(method="exact", max_new_tokens=20, sampler=EntropyBounded(4.0))
    prompt = "Tom has 12 apples"
    chunks = list(stream(sbd, prompt, settings=settings, raw=True))
    engine = Engine(sbd)
    engine.submit(Request("a", sbd.tokenizer(prompt).input_ids, settings))
    for chunk in chunks:
        (progress,) = engine.step()
        assert (progress.id, progress.text) == ("a", chunk.text)
        assert progress.event is not None
        assert [(each.index, each.token_id) for each in progress.event.revealed] == [
            (each.index, each.token_id) for each in chunk.event.revealed
        ]
        assert (progress.event.number, progress.event.kind) == (chunk.event.number, chunk.event.kind)
        assert (progress.generation is None) == (chunk.generation is None)
    assert engine.is_idle


def test_masks_lie_where_a_gpu_can_read_them(
    trained_tokenizer: PreTrainedTokenizerBase, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests of unlike lengths, one behind the other: kernels read a mask in pieces of 16 numbers."""
    sbd, places = tiny_sbd("llama", trained_tokenizer), list[int]()
    attend = functional.scaled_dot_product_attention

    def note_place(*states: torch.Tensor, attn_mask: torch.Tensor | None = None, **how: Any) -> torch.Tensor:
        if attn_mask is not None:
            places.append(attn_mask.storage_offset())
        return attend(*states, attn_mask=attn_mask, **how)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", note_place)
    monkeypatch.setattr(packed_runner, "ON_CPU", 0)  # requests of unlike lengths are computed apart
    engine = Engine(sbd)
    for number, text in enumerate(texts):
        engine.submit(Request(str(number), text, SLOW))
    for _ in range(8):
        engine.step()
    assert any(places)
    assert not any(place % 16 for place in places)


def test_a_cancelled_request_leaves_its_place_to_the_next_at_once(endless: SBDModel, texts: list[list[int]]) -> None:
    engine = Engine(endless, EngineLimits(max_num_seqs=1))
    for name in ("runs", "waits", "next"):
        engine.submit(Request(name, texts[0], SLOW))
    engine.step()
    assert (engine.figures.running, engine.figures.waiting) == (1, 2)
    engine.cancel("runs")
    engine.cancel("waits")
    engine.cancel("nobody")
    progress = {each.id: each for each in engine.step()}
    assert engine.figures.running == 1
    assert progress.keys() == {"runs", "waits", "next"}
    reasons = {name: each.generation and each.generation.finish_reason for name, each in progress.items()}
    assert reasons == {"runs": "cancelled", "waits": "cancelled", "next": None}
    assert progress["waits"].generation is not None
    assert progress["waits"].generation.num_forwards == 0
    engine.cancel("next")
    engine.step()
    assert engine.is_idle
    assert engine.figures.kv_tokens_used == 0


def test_an_id_may_be_used_again_once_it_is_finished(endless: SBDModel, texts: list[list[int]]) -> None:
    engine = Engine(endless)
    request = Request("a", texts[0], replace(SLOW, max_new_tokens=2))
    engine.submit(request)
    with pytest.raises(SetBlockError, match="id 'a' is not finished"):
        engine.submit(request)
    Log().run(engine)
    engine.submit(request)


def test_refuses_what_it_can_not_do(sbd: SBDModel, texts: list[list[int]]) -> None:
    engine = Engine(sbd, EngineLimits(max_waiting=1, kv_tokens=32))
    vocab_size = len(sbd.tokenizer)
    for prompt, settings, message in [
        ([], SLOW, "prompt must not be empty"),
        ([1, vocab_size], SLOW, f"between 0 and {vocab_size - 1}, not {vocab_size}"),
        ([1, -1], SLOW, "not -1"),
        ([1], replace(SLOW, n=2), "n must be 1"),
        ([1], SLOW, "may take 41 tokens and this engine's cache holds 32"),
        ([1], replace(SLOW, banned_tokens=[vocab_size]), "banned_tokens must be between"),
    ]:
        with pytest.raises(SetBlockError, match=message):
            engine.submit(Request("a", prompt, settings))
    assert engine.is_idle
    engine.submit(Request("a", [1], replace(SLOW, max_new_tokens=2)))
    with pytest.raises(QueueFull, match="1 requests are waiting"):
        engine.submit(Request("b", [1], replace(SLOW, max_new_tokens=2)))
    engine.step()
    engine.submit(Request("b", [1], replace(SLOW, max_new_tokens=2)))
    for kv_tokens, most in ((1024, 30), (32, 30), (32, 40)):
        engine = Engine(sbd, EngineLimits(kv_tokens=kv_tokens, max_model_len=most))
        most = min(kv_tokens, most)
        engine.submit(Request("a", [1], replace(SLOW, max_new_tokens=most - 1)))
        limit = "cache holds 32: .* enlarge kv_tokens" if most == 32 else "limit is 30: .* enlarge max_model_len"
        with pytest.raises(SetBlockError, match=f"may take {most + 1} tokens and this engine's {limit}"):
            engine.submit(Request("b", [1], replace(SLOW, max_new_tokens=most)))
    for name in ("max_num_seqs", "kv_tokens", "max_num_batched_tokens", "max_waiting", "max_model_len", "page_tokens"):
        with pytest.raises(ParameterError, match=f"{name} must be at least 1, not 0"):
            EngineLimits(**{name: 0})


def test_when_the_cache_runs_short_the_youngest_waits_and_answers_stay(
    endless: SBDModel, texts: list[list[int]]
) -> None:
    settings = [replace(SLOW, method=method, sampler=EntropyBounded(4.0)) for method in ("sbd", "exact", "ntp")]
    wanted = [Request(str(n), texts[n], each) for n, each in enumerate(settings)]
    engine, log = Engine(endless, EngineLimits(kv_tokens=112, page_tokens=4)), Log()
    for request in wanted:
        engine.submit(request)
    first_done = []
    while not engine.is_idle:
        progress = engine.step()
        log.add(progress)
        assert engine.figures.kv_tokens_used + engine.figures.kv_tokens_cached <= 112
        first_done += [each.id for each in progress if each.generation is not None]
    assert engine.figures.preemptions > 0
    assert first_done[-1] == "2"
    for request in wanted:
        assert_as_alone(log[request.id], alone(endless, request))


def test_a_prompt_that_was_there_before_is_not_fed_again(endless: SBDModel, texts: list[list[int]]) -> None:
    """Nor what an answer added to it. The answers are the same."""
    prompt, settings = texts[2], replace(SLOW, method="sbd", sampler=EntropyBounded(4.0))
    first, again = Request("first", prompt, settings), Request("again", prompt, replace(settings, temperature=1.0))
    engine = Engine(endless, EngineLimits(page_tokens=8))
    engine.submit(first)
    log = Log().run(engine)
    assert engine.figures.prefix_hit_tokens == 0
    engine.submit(again)
    log.run(engine)
    assert engine.figures.prefix_hit_tokens == 8 * ((len(prompt) - 1) // 8)
    assert engine.figures.prefill_tokens == 2 * len(prompt) - engine.figures.prefix_hit_tokens
    answer = log["first"].generation
    assert answer is not None
    longer = Request("longer", [*prompt, *answer.token_ids[:30], 5], settings)
    before = engine.figures.prefix_hit_tokens
    engine.submit(longer)
    log.run(engine)
    assert engine.figures.prefix_hit_tokens - before > len(prompt)
    for request in (first, again, longer):
        assert_as_alone(log[request.id], alone(endless, request))


def test_a_long_prompt_holds_nobody_up(endless: SBDModel, texts: list[list[int]]) -> None:
    """While it is fed in parts, all others get a pass each time, and a short prompt that comes later is done first."""
    long = (texts[2] * 3)[:90]
    engine, log = Engine(endless, EngineLimits(max_num_batched_tokens=16)), Log()
    engine.submit(Request("running", texts[0], replace(SLOW, max_new_tokens=30)))
    engine.step()
    engine.submit(Request("long", long, replace(SLOW, max_new_tokens=2)))
    engine.submit(Request("short", texts[0], replace(SLOW, max_new_tokens=2)))
    order = []
    while "long" not in order:
        progress = engine.step()
        log.add(progress)
        assert "running" in {each.id for each in progress}
        order += [each.id for each in progress if each.generation is not None]
    assert order == ["short", "long"]
    assert log["long"].silent > 3


def test_the_model_sees_real_tokens_only(endless: SBDModel, texts: list[list[int]]) -> None:
    """And its head what is wanted of them: the last of a prompt, a block's positions that are masked."""
    fed, read = [], []
    hooks = [
        endless.model.register_forward_pre_hook(
            lambda module, args, kwargs: fed.append(tuple(kwargs["input_ids"].shape)), with_kwargs=True
        ),
        endless.model.lm_head.register_forward_hook(lambda module, args, output: read.append(output.shape[1])),
    ]
    try:
        engine = Engine(endless)
        fed.clear()
        read.clear()
        engine.submit(Request("a", texts[1], DecodingSettings(method="sbd", block_size=6, max_new_tokens=20)))
        engine.submit(Request("b", texts[2], SLOW))
        engine.step()
        engine.step()
        figures = engine.figures
    finally:
        for hook in hooks:
            hook.remove()
    assert fed == [(1, len(texts[1]) + len(texts[2])), (1, 6 + 1)]
    assert read == [2, 5 + 1]  # the prefill has revealed the block's first token
    assert (figures.prefill_tokens, figures.block_tokens, figures.commit_tokens) == (fed[0][1], 7, 0)


def test_logits_that_are_no_numbers_end_their_request_alone(
    trained_tokenizer: PreTrainedTokenizerBase, texts: list[list[int]]
) -> None:
    """And what it leaves in the cache harms nobody who gets its pages."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted", dtype=torch.float64)
    sbd.end_of_text_ids = ()
    poison = 299
    settings = replace(SLOW, banned_tokens=[poison], max_new_tokens=8)
    fine = [Request(f"fine {n}", texts[n], replace(settings, method=m)) for n, m in enumerate(("ntp", "exact", "sbd"))]
    with torch.no_grad():
        sbd.model.get_input_embeddings().weight[poison] = torch.nan
    engine, log = Engine(sbd, EngineLimits(kv_tokens=128, page_tokens=4)), Log()
    for n, request in enumerate(fine):
        engine.submit(Request(f"bad {n}", [*texts[0][: 3 + n], poison, 9], replace(settings, method="sbd")))
        engine.submit(request)
    log.run(engine)
    for request in fine:
        engine.submit(replace(request, id=f"{request.id} again"))
    log.run(engine)
    for n, request in enumerate(fine):
        bad = log[f"bad {n}"].generation
        assert bad is not None
        assert (bad.finish_reason, bad.text) == ("error", "")
        for name in (request.id, f"{request.id} again"):
            assert_as_alone(log[name], alone(sbd, request))
