"""A cache too small for all requests: vLLM takes some off and feeds them again, and answers stay those of `generate`."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

import setblock
from in_vllm.engines import ask, figure, offline, problems
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.samplers import EntropyPrefix
from setblock.decoding.settings.table import DecodingSettings
from slot_engine import generated

PAGES = 14  # of 32 tokens, for eight requests of about 150


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    made = offline(num_gpu_blocks_override=PAGES, block_size=32, max_num_batched_tokens=256, max_model_len=384)
    yield made
    made.llm_engine.engine_core.shutdown()


@pytest.mark.parametrize(
    ("settings", "extra"),
    [
        (DecodingSettings(method="sbd", sampler=EntropyPrefix(0.03)), {"method": "sbd", "gamma": 0.03}),
        (DecodingSettings(method="exact"), {"method": "exact"}),
    ],
    ids=["blocks", "exact"],
)
def test_preempted_requests_go_on_where_they_were(
    engine: Any, settings: DecodingSettings, extra: dict[str, Any]
) -> None:
    model, questions = setblock.load(), [problem.question for problem in problems(8)]
    before = figure(engine, "vllm:num_preemptions")
    answers = ask(engine, questions, [extra] * len(questions))
    assert figure(engine, "vllm:num_preemptions") > before
    for question, answer in zip(questions, answers, strict=True):
        prompt = encode_prompt(model.tokenizer, question, raw=False)
        assert list(answer.token_ids) == generated(model, prompt, replace(settings, max_new_tokens=256))[0]
