"""Decoding by llama.cpp is decoding by PyTorch, token for token, and by as many passes."""

import json
from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

import setblock
from answers import answers, assert_same
from running import Log
from setblock import DecodingSettings
from setblock.data.tasks import task_named
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.samplers import EntropyBounded, FixedCount
from setblock.engine.engine import Engine
from setblock.engine.generate import generate, stream
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.export.gguf_file import write_gguf
from setblock.integrations.llama_cpp.model import LlamaModel, load
from setblock.integrations.llama_cpp.runner import LlamaRunner

from .conftest import EXACT, Both, Pair, lengths

pytestmark = pytest.mark.usefixtures("longest_drafts")

SETTINGS = [
    DecodingSettings(method="sbd", max_new_tokens=20),
    DecodingSettings(method="sbd", max_new_tokens=30, block_size=5, sampler=EntropyBounded(2.0)),
    DecodingSettings(method="exact", max_new_tokens=30, block_size=16),
    DecodingSettings(method="exact", max_new_tokens=17, block_size=4, prompt_lookup=1, logprobs=2),
    DecodingSettings(method="sbd", max_new_tokens=12, block_size=8, temperature=0.8, top_p=0.9, seed=4),
    DecodingSettings(method="exact", max_new_tokens=25, temperature=1.0, repetition_penalty=1.3, seed=5),
    DecodingSettings(method="sbd", max_new_tokens=9, block_size=8, sampler=FixedCount(3), logit_bias={5: 2.0}),
    DecodingSettings(method="ntp", max_new_tokens=10),
]


def requests(prompts: list[list[int]]) -> list[list[int]]:
    return [prompts[number % 3] for number in range(len(SETTINGS))]


@pytest.mark.parametrize("mode", ["unshifted", "unshifted, first token causal", "shifted"])
def test_tokens_and_passes_are_pytorchs(mode: str, pair: Pair, prompts: list[list[int]]) -> None:
    sbd, llama = pair(mode=mode)
    assert llama.sbd_config == sbd.sbd_config
    assert llama.end_of_text_ids == sbd.end_of_text_ids
    for ours, theirs in zip(
        answers(llama, requests(prompts), SETTINGS), answers(sbd, requests(prompts), SETTINGS), strict=True
    ):
        assert_same(ours, theirs)
        assert ours.passes == theirs.passes


def test_separate_commits_give_the_same_tokens(
    both: Both, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, llama = both
    fused = answers(llama, requests(prompts), SETTINGS)
    monkeypatch.setattr(llama, "_own", None)
    assert not llama.runner(pages=1, page_tokens=8, rows=1).fuses_commit
    separate = answers(llama, requests(prompts), SETTINGS)
    for one, other in zip(fused, separate, strict=True):
        assert_same(one, other)
    assert sum(each.passes.total for each in separate) > sum(each.passes.total for each in fused)


def test_a_stream_and_a_batch_of_one(both: Both, prompts: list[list[int]]) -> None:
    _, llama = both
    for prompt, settings, together in zip(
        requests(prompts), SETTINGS, answers(llama, requests(prompts), SETTINGS), strict=True
    ):
        *chunks, last = stream(llama, prompt, settings=settings)
        assert last.generation is not None
        assert_same(last.generation, together)
        assert "".join(chunk.text for chunk in [*chunks, last]) == together.text


def test_the_engine_gives_what_a_request_gets_alone(both: Both, prompts: list[list[int]]) -> None:
    """Requests come, are preempted, cancelled and answered; in the end the cache is empty."""
    _, llama = both
    engine = Engine(llama, EngineLimits(max_num_seqs=4, kv_tokens=88, page_tokens=8, max_num_batched_tokens=24))
    log = Log()
    wanted = [
        Request(str(n), prompt, settings)
        for n, (prompt, settings) in enumerate(zip(requests(prompts), SETTINGS, strict=True))
    ]
    for request in wanted:
        engine.submit(request)
    for number in range(4):
        engine.submit(Request(f"cancelled {number}", prompts[number % 3], replace(SETTINGS[number], max_new_tokens=40)))
    for number in range(4):
        log.add(engine.step())
        engine.cancel(f"cancelled {number}")
    while not engine.is_idle:
        log.add(engine.step())
    assert engine.figures.preemptions > 0
    assert (engine.figures.kv_tokens_used, engine.figures.kv_tokens_cached) == (0, 0)
    for request in wanted:
        generation = log[request.id].generation
        assert generation is not None
        (alone,) = answers(llama, [list(request.prompt)], [request.settings])
        assert_same(generation, alone)
    runner = engine._runner
    assert isinstance(runner, LlamaRunner)
    assert not any(lengths(runner.context))


def test_one_request_alone_leaves_nothing(both: Both, prompts: list[list[int]]) -> None:
    _, llama = both
    engine = Engine(llama, EngineLimits(kv_tokens=256))
    engine.submit(Request("a", prompts[2], SETTINGS[2]))
    engine.step()
    engine.step()
    engine.cancel("a")
    engine.step()
    runner = engine._runner
    assert isinstance(runner, LlamaRunner)
    assert not any(lengths(runner.context))


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("bundled") / "bundled.gguf"
    write_gguf(setblock.load(), path, weights="f32")
    return path


@pytest.fixture(scope="module")
def bundled_model(bundled: Path) -> LlamaModel:
    return load(bundled, EXACT)


def test_exact_text_is_stock_llama_cpps(bundled: Path, bundled_model: LlamaModel) -> None:
    """The binding's own completion of the same file; it reads the prompt as text."""
    import llama_cpp

    stock = llama_cpp.Llama(str(bundled), n_ctx=1024, verbose=False, n_threads=1, n_gpu_layers=0)
    for example in islice(task_named("word-problems").examples("test", seed=1), 4):
        prompt = encode_prompt(bundled_model.tokenizer, example.messages)
        text = bundled_model.tokenizer.decode(prompt)
        assert stock.tokenize(text.encode(), add_bos=True, special=True) == prompt
        theirs = stock.create_completion(prompt, max_tokens=200, temperature=0.0, repeat_penalty=1.0)
        ours = generate(bundled_model, prompt, settings=DecodingSettings(max_new_tokens=200))
        assert ours.text == theirs["choices"][0]["text"]
        assert ours.num_forwards < ours.num_tokens
    stock.close()


def test_an_untrained_file_drafts_by_lookup(tmp_path: Path, pair: Pair, prompts: list[list[int]]) -> None:
    sbd, _ = pair()
    sbd.sbd_config = None
    write_gguf(sbd, tmp_path / "plain.gguf", weights="f32")
    with pytest.warns(setblock.model.loading.loading.NotTrainedForBlocks):
        llama = load(tmp_path / "plain.gguf", EXACT)
    assert llama.sbd_config is None
    repeating = (prompts[1][:6] * 6)[:30]
    plain, exact = (
        answers(llama, [repeating], [DecodingSettings(method=method, max_new_tokens=40, block_size=8)])[0]
        for method in ("ntp", "exact")
    )
    assert exact.token_ids == plain.token_ids
    assert json.dumps(exact.token_ids)
