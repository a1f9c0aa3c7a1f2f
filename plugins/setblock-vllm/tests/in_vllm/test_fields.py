"""vLLM's own fields of a request in blocks do what the settings of `setblock.generate` do: forms, temperature and others."""

import json
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import BaseModel

import setblock
from in_vllm.engines import offline, problems
from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.samplers import EntropyPrefix
from setblock.decoding.settings.table import DecodingSettings
from setblock.structure import Choice, Grammar, JsonObject, JsonSchema, Regex
from setblock_vllm import fields, vllm_api
from slot_engine import generated
from structure.bombs import BOMBS


class Answer(BaseModel):
    """An answer to a word problem."""

    name: str
    count: int


LARK = 'start: "the " ("sum" | "difference") " is " /[0-9]{1,3}/'
FORMS: dict[str, tuple[dict[str, Any], Any]] = {
    "schema": ({"json": Answer.model_json_schema()}, JsonSchema(Answer.model_json_schema())),
    "schema as a text": ({"json": '{"type": "array", "items": {"type": "integer"}, "maxItems": 3}'},) * 2,
    "closed schema": ({"json": Answer.model_json_schema(), "disable_additional_properties": True}, JsonSchema(Answer)),
    "object": ({"json_object": True}, JsonObject()),
    "regex": ({"regex": "[0-9]{1,3} (apples|coins)"}, Regex("[0-9]{1,3} (apples|coins)")),
    "choice": ({"choice": ["more", "fewer", "as many"]}, Choice(["more", "fewer", "as many"])),
    "grammar": ({"grammar": LARK}, Grammar(LARK)),
}
METHODS: tuple[tuple[dict[str, Any], DecodingSettings], ...] = (
    ({"method": "exact"}, DecodingSettings(method="exact")),
    ({"method": "sbd", "gamma": 0.3}, DecodingSettings(method="sbd", sampler=EntropyPrefix(0.3))),
    ({"method": "ntp"}, DecodingSettings(method="ntp")),
)
QUESTION = problems(1)[0].question


@pytest.fixture(scope="module")
def engine() -> Iterator[Any]:
    made = offline()
    yield made
    made.llm_engine.engine_core.shutdown()


@pytest.fixture(scope="module")
def model() -> setblock.SBDModel:
    return setblock.load()


def ask(engine: Any, *requests: dict[str, Any]) -> list[list[int]]:
    """The tokens of requests at once."""
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    chats, wanted = [], []
    for each in requests:
        usual = {"question": QUESTION, "max_tokens": 48, "temperature": 0.0, "extra_args": {"method": "exact"}}
        named = usual | each
        chats.append([{"role": "user", "content": named.pop("question")}])
        if isinstance(form := named.get("structured_outputs"), dict):
            named["structured_outputs"] = StructuredOutputsParams(**form)
        wanted.append(SamplingParams(**named))
    return [list(output.outputs[0].token_ids) for output in engine.chat(chats, wanted, use_tqdm=False)]


def expected(model: setblock.SBDModel, settings: DecodingSettings, question: str = QUESTION) -> list[int]:
    prompt = encode_prompt(model.tokenizer, question, raw=False)
    return generated(model, prompt, replace(settings, max_new_tokens=48))[0]


def test_answers_have_their_form(engine: Any, model: setblock.SBDModel) -> None:
    """All forms by all methods at once, beside free requests; every token is that of `generate`."""
    requests, answers = [], []
    for extra, settings in METHODS:
        requests.append({"extra_args": extra})
        answers.append(expected(model, settings))
        for asked, form in FORMS.values():
            form = JsonSchema(form["json"]) if isinstance(form, dict) else form
            requests.append({"extra_args": extra, "structured_outputs": asked})
            answers.append(expected(model, replace(settings, structure=form)))
    found = ask(engine, *requests)
    for request, tokens, answer in zip(requests, found, answers, strict=True):
        assert tokens == answer, request
    texts = [model.tokenizer.decode(tokens, skip_special_tokens=True) for tokens in found]
    assert texts[1 + list(FORMS).index("choice")] in FORMS["choice"][0]["choice"]
    closed = texts[1 + list(FORMS).index("closed schema")]
    assert len(found[3]) == 48 or set(json.loads(closed)) == {"name", "count"}


def test_fields_are_those_of_block_decoding(engine: Any, model: setblock.SBDModel) -> None:
    end = model.tokenizer.eos_token_id
    asked: tuple[tuple[dict[str, Any], DecodingSettings], ...] = (
        ({"temperature": 2.0, "seed": 7}, DecodingSettings(temperature=2.0, seed=7)),
        ({"temperature": 2.0, "seed": 8}, DecodingSettings(temperature=2.0, seed=8)),
        ({"temperature": 2.0, "min_p": 0.2, "seed": 8}, DecodingSettings(temperature=2.0, min_p=0.2, seed=8)),
        ({"logit_bias": {end: 90.0}}, DecodingSettings(logit_bias={end: 90.0})),
        ({"logit_bias": {end: 90.0}, "min_tokens": 6}, DecodingSettings(logit_bias={end: 90.0}, min_new_tokens=6)),
        # What `extra_args` say counts
        (
            {"seed": 8, "extra_args": {"method": "exact", "temperature": 2.0, "seed": 7}},
            DecodingSettings(temperature=2.0, seed=7),
        ),
    )
    answers = [expected(model, settings) for _, settings in asked]
    assert ask(engine, *(request for request, _ in asked)) == answers
    assert len({tuple(each) for each in answers}) == 5
    assert [len(each) for each in answers[3:5]] == [1, 7]


def test_log_probabilities_are_those_of_generate(engine: Any, model: setblock.SBDModel) -> None:
    """Beside requests without them, and with fewer."""
    from vllm import SamplingParams

    chat, asked = [{"role": "user", "content": QUESTION}], [(extra, n) for extra, _ in METHODS for n in (3, None, 0)]
    wanted = [
        SamplingParams(max_tokens=32, temperature=0.0, logprobs=n, extra_args=extra, logit_bias={539: -90.0})
        for extra, n in asked
    ]
    outputs = [each.outputs[0] for each in engine.chat([chat] * len(wanted), wanted, use_tqdm=False)]
    for (_, settings), first in zip(METHODS, range(0, len(outputs), 3), strict=True):
        settings = replace(settings, logit_bias={539: -90.0}, logprobs=3, max_new_tokens=32, drafts="fixed")
        answer = setblock.generate(model, QUESTION, settings=settings)
        assert answer.logprobs is not None
        full, none, fewest = outputs[first : first + 3]
        assert list(full.token_ids) == list(answer.token_ids)
        assert none.logprobs is None
        for token_id, found, expected_, least in zip(
            full.token_ids, full.logprobs, answer.logprobs, fewest.logprobs, strict=True
        ):
            ranks = {each: one.rank for each, one in found.items()}
            assert found[token_id].logprob == pytest.approx(expected_.logprob, abs=1e-3)
            assert sorted(ranks, key=ranks.__getitem__)[:3] == [one for one, _ in expected_.alternatives]
            assert set(least) == {token_id}


def test_without_a_seed_each_answer_is_another(engine: Any) -> None:
    hot = {"temperature": 2.0, "top_k": 0}
    assert len({tuple(tokens) for tokens in ask(engine, hot, hot, hot)}) == 3
    one, again = ask(engine, {**hot, "seed": 5}, {**hot, "seed": 5})
    assert one == again


def test_a_callers_parameters_stay_as_they_are() -> None:
    from vllm import SamplingParams
    from vllm.sampling_params import StructuredOutputsParams

    form = StructuredOutputsParams(regex="[0-9]")
    params = SamplingParams(temperature=0.5, seed=3, structured_outputs=form, extra_args={"method": "sbd"})
    moved = fields.fields_moved(params)
    assert (params.temperature, params.seed, params.structured_outputs, params.extra_args) == (
        *(0.5, 3, form),
        {"method": "sbd"},
    )
    assert fields.fields_moved(moved).extra_args == moved.extra_args | {"temperature": 0.5}


def test_requests_of_other_models_pass_through() -> None:
    from vllm import SamplingParams

    seen = []
    step = fields._with_fields(lambda self, request_id, prompt, params: seen.append(params))
    other = SimpleNamespace(model_config=SimpleNamespace(hf_config=SimpleNamespace(architectures=["LlamaForCausalLM"])))
    params = SamplingParams(temperature=0.5, bad_words=["no"])
    step(other, "1", {}, params)
    assert seen == [params]
    assert seen[0] is params


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ({"structured_outputs": {"json": {"type": "no type"}}}, r"json|schema"),
        ({"structured_outputs": {"regex": "("}}, "regex can't be used"),
        ({"structured_outputs": {"grammar": 'begin: "a"'}}, "grammar can't be used"),
        ({"structured_outputs": {"regex": "a", "whitespace_pattern": " "}}, "whitespace_pattern must be left out"),
        ({"structured_outputs": {"structural_tag": "{}"}}, "structural_tag must be left out: block decoding has json"),
        ({"structured_outputs": {"regex": "a"}, "ignore_eos": True}, "leave out ignore_eos, or give stop_token_ids"),
        ({"structured_outputs": {"regex": "a"}, "min_tokens": 5}, "min_new_tokens must be 0 with a structure"),
        ({"structured_outputs": {"regex": "a"}, "extra_args": {"structure": "{}"}}, "exclude each other"),
        ({"extra_args": {"structure": "{"}}, "structure must be JSON"),
        ({"bad_words": ["no"]}, "bad_words must be left out: block decoding has banned_tokens"),
        ({"allowed_token_ids": [1]}, "allowed_token_ids must be left out"),
        ({"extra_args": {"banned_tokens": [10**6]}}, "token ids of banned_tokens must be between 0 and "),
        ({"logit_bias": {10**6: 1}}, "token ids of logit_bias must be between 0 and "),
        ({"temperature": 1.0, "seed": 2**70}, "seed must be a number of 64 bits"),
    ],
)
def test_mistakes_are_named(engine: Any, request_: dict[str, Any], message: str) -> None:
    with pytest.raises(vllm_api.VLLMValidationError, match=message):
        ask(engine, request_)


@pytest.mark.parametrize("name", ["chained rules", "grammars in grammars", "repetitions of repetitions"])
def test_forms_that_cost_too_much_are_refused(engine: Any, name: str) -> None:
    (word, form), message = BOMBS[name]
    with pytest.raises(vllm_api.VLLMValidationError, match=message):
        ask(engine, {"structured_outputs": {word: form}})
