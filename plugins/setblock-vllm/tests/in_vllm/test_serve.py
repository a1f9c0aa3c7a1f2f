"""`vllm serve` in processes of its own: the API, two processes for one model, the stock engine, and refusals at the start."""

import json
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

import setblock
from in_vllm.engines import as_json, metrics, problems, served, told
from setblock.decoding.samplers import EntropyPrefix
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.loading.named import BUNDLED_MODEL
from setblock_vllm.config import overrides_for

pytestmark = pytest.mark.servers
QUESTION = problems(1)[0].question
SETTINGS = DecodingSettings(method="sbd", sampler=EntropyPrefix(0.03), max_new_tokens=256)
IN_PROCESSES = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}


def client(url: str) -> Any:
    from openai import OpenAI

    return OpenAI(base_url=url, api_key="none", max_retries=0, timeout=600)


def answer(url: str, **extra: Any) -> str:
    reply = client(url).chat.completions.create(
        model="it",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=256,
        extra_body={"vllm_xargs": extra} if extra else {},
    )
    return str(reply.choices[0].message.content)


@pytest.fixture(scope="module")
def expected() -> str:
    return setblock.generate(setblock.load(), QUESTION, settings=SETTINGS).text


@pytest.fixture(scope="module", params=[1, 2], ids=["tp1", "tp2"])
def url(request: pytest.FixtureRequest) -> Iterator[str]:
    """A server whose model is on one process, or on two."""
    words = ["--tensor-parallel-size", str(request.param), "--enable-auto-tool-choice", "--tool-call-parser", "hermes"]
    with served(*words, port=18231 + request.param, environment=IN_PROCESSES) as it:
        yield it


def test_a_client_gets_the_answer_of_generate(url: str, expected: str) -> None:
    assert answer(url, method="sbd", gamma=0.03) == expected


def test_a_client_streams_it(url: str, expected: str) -> None:
    stream = client(url).chat.completions.create(
        model="it",
        messages=[{"role": "user", "content": QUESTION}],
        max_tokens=256,
        stream=True,
        extra_body={"vllm_xargs": {"method": "sbd", "gamma": 0.03}},
    )
    pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
    assert "".join(pieces) == expected
    assert len([piece for piece in pieces if piece]) > 2  # a piece a block, not all at the end


def test_mistakes_are_400(url: str) -> None:
    from openai import BadRequestError

    for extra, message in (({"gamma": -1}, "gamma must be at least 0"), ({"gama": 1}, "parameter 'gama' is not known")):
        with pytest.raises(BadRequestError, match=message):
            answer(url, **extra)


def test_answers_have_the_form_that_a_request_names(url: str) -> None:
    """At once, as `response_format`, as `structured_outputs` and as a tool that must be called."""
    named = {"name": "count", "schema": {"type": "object", "properties": {"n": {"type": "integer", "maximum": 99}}}}
    named["schema"] |= {"required": ["n"], "additionalProperties": False}
    tool = {"type": "function", "function": {"name": "count", "parameters": named["schema"]}}
    requests: list[dict[str, Any]] = [
        {"response_format": {"type": "json_schema", "json_schema": named}},
        {"extra_body": {"structured_outputs": {"choice": ["many", "few"]}}},
        {"tools": [tool], "tool_choice": {"type": "function", "function": {"name": "count"}}},
        {"temperature": 1.5, "seed": 4, "extra_body": {"min_p": 0.1}},
        {"temperature": 1.5, "seed": 4, "extra_body": {"min_p": 0.1}},
    ]

    def reply(asked: dict[str, Any]) -> Any:
        messages: list[Any] = [{"role": "user", "content": QUESTION}]
        return client(url).chat.completions.create(model="it", messages=messages, max_tokens=64, **asked)

    with ThreadPoolExecutor(len(requests)) as threads:
        schema, choice, call, one, again = (each.choices[0].message for each in threads.map(reply, requests))
    assert list(json.loads(schema.content)) == ["n"]
    assert choice.content in ("many", "few")
    assert list(json.loads(call.tool_calls[0].function.arguments)) == ["n"]
    assert one.content == again.content


def test_a_form_that_can_not_be_had_is_400(url: str) -> None:
    from openai import BadRequestError

    for form, message in (({"regex": "("}, "regex can't be used"), ({"structural_tag": "{}"}, "structural")):
        with pytest.raises(BadRequestError, match=message):
            client(url).completions.create(model="it", prompt="How many", extra_body={"structured_outputs": form})


def test_passes_are_in_the_metrics(url: str) -> None:
    before = metrics(url)
    answer(url, method="sbd", gamma=0.03)
    after = metrics(url)
    steps = "vllm:diffusion_num_denoising_steps_total"
    tokens = "vllm:diffusion_num_committed_tokens_total"
    assert 0 < after[steps] - before[steps] < after[tokens] - before[tokens]


def test_the_same_checkpoint_is_served_plainly(expected: str) -> None:
    """By the stock architecture, with the plugin installed and without."""
    exact = setblock.generate(
        setblock.load(), QUESTION, settings=DecodingSettings(method="ntp", max_new_tokens=256)
    ).text
    for plugins, port in (("", 18241), ("setblock", 18242)):
        with served(blocks=False, port=port, environment=IN_PROCESSES | {"VLLM_PLUGINS": plugins}) as url:
            reply = client(url).chat.completions.create(
                model="it", messages=[{"role": "user", "content": QUESTION}], max_tokens=256, temperature=0
            )
            assert reply.choices[0].message.content == exact


def test_an_architecture_that_is_none_is_refused_at_the_start() -> None:
    vllm = str(Path(sys.executable).with_name("vllm"))
    overrides = overrides_for(BUNDLED_MODEL) | {"setblock": None}
    code, said = told([vllm, "serve", str(BUNDLED_MODEL), "--hf-overrides", as_json(overrides)], IN_PROCESSES)
    assert code != 0
    assert "never trained for block decoding: serve it without --hf-overrides" in said
