"""One engine in this process: the bundled model gives under vLLM what `setblock.generate` gives, token for token.

SETBLOCK_VLLM_PROBLEMS says on how many held-out problems; 100 by `make test-vllm`, few by default.
"""

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import setblock
from in_vllm.engines import ask, figure, offline, passes_so_far, problems
from in_vllm.steps import Steps, counted
from setblock.data.tasks.word_problems import answer_in
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.samplers import EntropyPrefix, Factor
from setblock.decoding.settings.table import DecodingSettings
from setblock_vllm import hooks, vllm_api
from slot_engine import generated

COUNT = int(os.environ.get("SETBLOCK_VLLM_PROBLEMS", "4"))


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    # Prompts of about 60 tokens go in two chunks, and fill a page of the cache.
    made = offline(max_num_batched_tokens=48, enable_chunked_prefill=True, enable_prefix_caching=True, block_size=32)
    yield made
    made.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def model() -> setblock.SBDModel:
    return setblock.load()


def test_vllm_has_what_is_used_of_it() -> None:
    assert hooks.problem() is None
    for name in vllm_api.HOMES:
        assert getattr(vllm_api, name) is not None


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        (DecodingSettings(method="sbd", sampler=EntropyPrefix(0.03)), {"method": "sbd", "gamma": 0.03}),
        (DecodingSettings(method="exact"), {"method": "exact"}),
    ],
    ids=["blocks", "exact"],
)
def test_tokens_and_passes_are_those_of_generate(
    engine: Any, model: setblock.SBDModel, settings: DecodingSettings, extra: dict[str, Any]
) -> None:
    """One by one, with each request's passes; then eight at once."""
    chosen = problems(COUNT)
    questions = [problem.question for problem in chosen]
    expected = [
        generated(model, encode_prompt(model.tokenizer, each, raw=False), replace(settings, max_new_tokens=256))
        for each in questions
    ]
    right = 0
    for problem, (token_ids, passes) in zip(chosen, expected, strict=True):
        before = passes_so_far(engine)
        (answer,) = ask(engine, [problem.question], [extra])
        assert list(answer.token_ids) == token_ids
        assert passes_so_far(engine) - before == passes
        right += answer_in(answer.text) == problem.number
    text = [model.tokenizer.decode(token_ids, skip_special_tokens=True) for token_ids, _ in expected]
    assert right == sum(answer_in(each) == problem.number for each, problem in zip(text, chosen, strict=True))
    for first in range(0, COUNT, 8):
        answers = ask(engine, questions[first : first + 8], [extra] * len(questions[first : first + 8]))
        assert [list(each.token_ids) for each in answers] == [ids for ids, _ in expected[first : first + 8]]


def test_requests_of_all_kinds_share_a_batch(engine: Any, model: setblock.SBDModel) -> None:
    settings = [
        DecodingSettings(method="ntp"),
        DecodingSettings(method="sbd", sampler=EntropyPrefix(0.3), block_size=8),
        DecodingSettings(method="sbd", sampler=Factor(0.5)),
        DecodingSettings(method="exact", temperature=1.0, seed=3, block_size=4),
        DecodingSettings(method="sbd", sampler=EntropyPrefix(0.1), temperature=0.7, seed=9, min_p=0.02),
        DecodingSettings(method="ntp", temperature=1.0, seed=4),
        DecodingSettings(method="sbd", sampler=EntropyPrefix(0.1), repetition_penalty=1.3, min_new_tokens=40),
        DecodingSettings(method="exact", logit_bias={17: 4.0}, banned_tokens=(20, 21)),
    ]
    extra: list[dict[str, Any]] = [
        {"method": "ntp"},
        {"method": "sbd", "gamma": 0.3, "block_size": 8},
        {"method": "sbd", "sampler": "factor", "factor": 0.5},
        {"method": "exact", "temperature": 1.0, "seed": 3, "block_size": 4},
        {"method": "sbd", "gamma": 0.1, "temperature": 0.7, "seed": 9, "min_p": 0.02},
        {"method": "ntp", "temperature": 1.0, "seed": 4},
        {"method": "sbd", "gamma": 0.1, "repetition_penalty": 1.3, "min_new_tokens": 40},
        {"method": "exact", "logit_bias": '{"17": 4.0}', "banned_tokens": [20, 21]},
    ]
    questions = [problem.question for problem in problems(len(settings))]
    answers = ask(engine, questions, extra)
    for question, each, answer in zip(questions, settings, answers, strict=True):
        prompt = encode_prompt(model.tokenizer, question, raw=False)
        assert list(answer.token_ids) == generated(model, prompt, replace(each, max_new_tokens=256))[0]


def test_a_step_waits_for_nothing(engine: Any) -> None:
    """No value is read, and as long as the same requests take part no list becomes a tensor. When others do, one does: which
    rows of the table take part. A request that joins is written into its row, and one that leaves runs nothing."""
    exact, sbd = {"method": "exact"}, {"method": "sbd", "gamma": 0.03}
    questions = [problem.question for problem in problems(4)]
    for extra, most in (([exact] * 4, 165), ([sbd] * 4, 140), ([exact, sbd, {"method": "ntp"}, exact], 250)):
        steps = Steps()
        with counted(steps):
            ask(engine, questions, extra)
        assert steps.most("step", "operations") <= most
        assert steps.most("others", "operations") <= most + 100
        assert steps.most("leave", "operations") == 0
        assert [steps.most(kind, "lists") for kind in ("step", "others", "leave")] == [0, 1, 0]
        assert steps.waits == []


def test_a_cached_prefix_changes_nothing(engine: Any) -> None:
    """The same prompt again, and one that goes on after the first answer, beside an engine whose cache was emptied."""
    question = problems(1)[0].question
    engine.reset_prefix_cache()
    (cold,) = ask(engine, [question], [{"method": "sbd", "gamma": 0.03}])
    hits = figure(engine, "vllm:prefix_cache_hits")
    (warm,) = ask(engine, [question], [{"method": "sbd", "gamma": 0.03}])
    assert figure(engine, "vllm:prefix_cache_hits") > hits
    longer = f"{question} {cold.text} {question}"
    (after,) = ask(engine, [longer], [{"method": "sbd", "gamma": 0.03}])
    engine.reset_prefix_cache()
    (again,) = ask(engine, [longer], [{"method": "sbd", "gamma": 0.03}])
    assert list(warm.token_ids) == list(cold.token_ids)
    assert list(after.token_ids) == list(again.token_ids)


@pytest.mark.parametrize(
    ("extra", "params", "message"),
    [
        ({"gamma": -1}, {}, "gamma must be at least 0, not -1"),
        ({"block_size": 99}, {}, "no larger than the served canvas"),
        ({"gama": 1}, {}, "parameter 'gama' is not known"),
        ({}, {"logprob_token_ids": [1]}, "logprob_token_ids must be left out"),
    ],
)
def test_mistakes_are_refused_before_anything_runs(
    engine: Any, extra: dict[str, Any], params: dict[str, Any], message: str
) -> None:
    from vllm.exceptions import VLLMClientError

    with pytest.raises((ValueError, VLLMClientError), match=message):  # vLLM's own are none of Python's
        ask(engine, ["How many?"], [extra], **params)
