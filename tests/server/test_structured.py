"""Forms and tools over HTTP: OpenAI's client gets what the library gives, and a hostile form is a 400 that holds up nobody."""

import copy
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Literal

import jsonschema
import openai
import pytest
from pydantic import BaseModel, Field
from transformers import PreTrainedTokenizerBase

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")

from families import tiny_sbd
from server.live import TIMEOUT, Live, serving
from server.test_parameters import error_of
from setblock import DecodingSettings, generate
from setblock.structure import Choice, JsonSchema, Regex
from structure.bombs import BOMBS
from structure.schemas import SCHEMAS
from structure.templates import HERMES

CHAT: list[Any] = [{"role": "user", "content": "Where is Ana?"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a place.",
        "parameters": {
            "type": "object",
            "properties": {"place": {"type": "string", "maxLength": 4}, "day": {"enum": ["today", "tomorrow"]}},
            "required": ["place", "day"],
            "additionalProperties": False,
        },
    },
}
CLOCK: Any = {"type": "function", "function": {"name": "clock"}}


class Home(BaseModel):
    street: str = Field(max_length=4)
    number: int = Field(ge=0, le=99)


class Person(BaseModel):
    name: str = Field(max_length=5)
    kind: Literal["adult", "child"]
    homes: list[Home] = Field(min_length=1, max_length=2)


@pytest.fixture(scope="module")
def live(trained_tokenizer: PreTrainedTokenizerBase) -> Iterator[Live]:
    tokenizer = copy.deepcopy(trained_tokenizer)
    tokenizer.chat_template = HERMES
    with serving(tiny_sbd("llama", tokenizer, mode="shifted", max_position_embeddings=1024)) as running:
        yield running


@pytest.fixture(scope="module")
def client(live: Live) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client:
        yield client


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_a_pydantic_model_is_parsed(method: str, client: openai.OpenAI, live: Live) -> None:
    reply = client.chat.completions.parse(
        model="tiny", messages=CHAT, response_format=Person, max_tokens=300, extra_body={"method": method}
    )
    (choice,) = reply.choices
    assert choice.finish_reason == "stop"
    assert isinstance(choice.message.parsed, Person)
    settings = DecodingSettings(method=method, structure=_strict(Person), max_new_tokens=300)
    assert choice.message.content == generate(live.model, CHAT, settings=settings).text


def _strict(kind: type[BaseModel]) -> Any:
    from openai.lib._pydantic import to_strict_json_schema

    return to_strict_json_schema(kind)


def test_the_client_s_stream_is_parsed(client: openai.OpenAI) -> None:
    with client.chat.completions.stream(model="tiny", messages=CHAT, response_format=Person, max_tokens=300) as stream:
        kinds = {event.type for event in stream}
        found = stream.get_final_completion().choices[0].message.parsed
    assert isinstance(found, Person)
    assert {"content.delta", "content.done"} <= kinds


def test_forms_of_every_kind(live: Live) -> None:
    cases: list[tuple[dict[str, Any], Any]] = [
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": SCHEMAS["flat"]}}}, SCHEMAS["flat"]),
        ({"structured_outputs": {"json": SCHEMAS["enum"]}}, SCHEMAS["enum"]),
        ({"structured_outputs": {"json": json.dumps(SCHEMAS["enum"]), "regex": None}}, JsonSchema(SCHEMAS["enum"])),
        ({"structured_outputs": {"regex": "[0-9]{3}"}}, Regex("[0-9]{3}")),
        ({"structured_outputs": {"choice": ["yes", "no"]}}, Choice(["yes", "no"])),
        ({"structured_outputs": {"grammar": 'start: "a" | "b"'}}, {"grammar": 'start: "a" | "b"'}),
    ]  # fmt: skip
    for body, form in cases:
        reply = live.chat("Hm?", max_tokens=60, **body)
        assert reply.status_code == 200, reply.text
        expected = generate(live.model, "Hm?", settings=DecodingSettings(structure=form, max_new_tokens=60))
        assert reply.json()["choices"][0]["message"]["content"] == expected.text
    whole = live.chat("Hm?", max_tokens=200, response_format={"type": "json_object"}).json()["choices"][0]
    assert whole["finish_reason"] == "length" or isinstance(json.loads(whole["message"]["content"]), dict)
    text = live.post("/v1/completions", prompt="Hm", max_tokens=9, structured_outputs={"regex": "x{4}"}).json()
    assert text["choices"][0]["text"] == "xxxx"


@pytest.mark.parametrize("at_once", [*(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 32)), 12])
def test_company_changes_nothing(at_once: int, live: Live) -> None:
    """Some with a form, some without."""
    forms = [*SCHEMAS.values()][: max(4, at_once)]

    def form_of(number: int) -> Any:
        return forms[number % len(forms)] if number % 3 else None

    def ask(number: int) -> str:
        form = form_of(number)
        body = {} if form is None else {"structured_outputs": {"json": form}}
        reply = live.chat(f"Number {number}?", max_tokens=40, **body)
        content: str = reply.json()["choices"][0]["message"]["content"]
        return content

    with ThreadPoolExecutor(at_once) as pool:
        found = list(pool.map(ask, range(at_once)))
    for number, text in enumerate(found):  # the model runs one pass at a time
        settings = DecodingSettings(structure=form_of(number), max_new_tokens=40)
        assert text == generate(live.model, f"Number {number}?", settings=settings).text


HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "no schema": ({"type": "objekt"}, "schema at $ can't be used: Invalid type: objekt"),
    "a part": (
        {"type": "object", "properties": {"a": {"type": "array", "items": {"type": 5}}}},
        "schema at $.properties.a.items can't be used: type must be a string",
    ),
    "nothing satisfies it": ({"type": "integer", "minimum": 5, "maximum": 3}, "Unsatisfiable schema: minimum (5)"),
    "a pattern": ({"type": "string", "pattern": "(a"}, "unclosed group"),
    "an unknown keyword": ({"type": "array", "uniqueItems": True}, 'Unimplemented keys: ["uniqueItems"]'),
    "many values": (
        {"type": "object", "properties": {"a": {"enum": list(range(10_000))}}},
        "schema must have at most 1000 values of enum, and has more at $.properties.a",
    ),
    "many properties": (
        {"type": "object", "properties": {str(each): {} for each in range(2000)}},
        "schema must have at most 1000 properties, and has more at $",
    ),
    "large": ({"description": "x" * 200_000}, "schema must be at most 131072 bytes, not 200019"),
    "recursion": ({"$ref": "#"}, "schema at $ can't be used: no text satisfies it"),
    "nowhere": ({"$ref": "#/$defs/x"}, "schema at $ can't be used: Pointer '/$defs/x' does not exist"),
    "elsewhere": ({"$ref": "http://example.com/x"}, "Resource 'http://example.com/x' is not present"),
    "many repetitions": ({"type": "string", "pattern": "a{1000000}"}, "must repeat at most 10000 times, not {1000000}"),
    "a long number": ({"enum": [2**53 + 1]}, "whole numbers of schema must be within 2**53 of 0, not 9007199254740993"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_schema_is_a_400_and_holds_up_nobody(name: str, live: Live) -> None:
    schema, said = HOSTILE[name]
    live.chat(max_tokens=1, structured_outputs={"regex": "a"})  # the vocabulary is read
    done = threading.Event()
    longest = [0.0]

    def watch() -> None:
        while not done.is_set():
            started = time.perf_counter()
            assert live.client.get("/health").status_code == 200
            longest[0] = max(longest[0], time.perf_counter() - started)

    other = threading.Thread(target=watch)
    other.start()
    error = error_of(live.chat(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}))
    done.set()
    other.join()
    assert error["param"] == "response_format"
    assert said in error["message"]
    assert "\n" not in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({"response_format": {"type": "xml"}}, "response_format", "must be of type text, json_object, or json_schema"),
        ({"response_format": {"type": "json_schema"}}, "response_format", "with json_schema.schema"),
        (
            {"structured_outputs": {}},
            "structured_outputs",
            "must have one of json, json_object, regex, choice, grammar",
        ),
        ({"structured_outputs": {"regex": "a", "choice": ["b"]}}, "structured_outputs", "not regex, choice"),
        ({"structured_outputs": {"regex": "(a"}}, "structured_outputs", "regex can't be used:"),
        ({"structured_outputs": {"regex": "[^\\s\\S]"}}, "structured_outputs", "no text satisfies it"),
        ({"structured_outputs": {"choice": ["a"] * 10_000}}, "structured_outputs", "at most 1000 texts, not 10000"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs", "choice must be a list of texts, not []"),
        ({"structured_outputs": {"grammar": "nothing"}}, "structured_outputs", "grammar can't be used:"),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs", "schema must be JSON, and is not"),
        ({"structured_outputs": {"json": "[" * 20_000}}, "structured_outputs", "schema must be JSON, and is not"),
        (
            {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
            "structured_outputs",
            "give one",
        ),
        (
            {"structured_outputs": {"regex": "a"}, "min_tokens": 3},
            "min_tokens",
            "must be 0 with a struct",
        ),
        ({"tool_choice": "required"}, "tool_choice", "tool_choice needs tools"),
        ({"tools": [WEATHER, WEATHER]}, "tools", "'weather' occurs twice"),
        (
            {"tools": [WEATHER], "tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice",
            "must name one of weather, not 'x'",
        ),
        ({"tools": [WEATHER], "response_format": {"type": "json_object"}}, "response_format", "can't go together with"),
        (
            {"tools": [{"type": "function", "function": {"name": "a", "parameters": {"type": 5}}}]},
            "tools",
            "type must be 'object', not 5",
        ),
        (
            {
                "tools": [
                    {"type": "function", "function": {"name": "a", "parameters": {"properties": {"x": {"type": 5}}}}}
                ]
            },
            "tools",
            "can't be used",
        ),
    ],
)
def test_what_can_not_be_requested(body: dict[str, Any], param: str, said: str, live: Live) -> None:
    error = error_of(live.chat(**body))
    assert said in error["message"]
    assert error["param"] == param


@pytest.mark.parametrize("name", BOMBS)
def test_no_form_ends_the_process(name: str, live: Live) -> None:
    (word, value), said = BOMBS[name]
    error = error_of(live.chat(structured_outputs={word: value}, max_tokens=3))
    assert said in error["message"]
    assert (error["param"], error["code"]) == ("structured_outputs", "invalid_structure")
    assert live.chat(max_tokens=3, structured_outputs={"regex": "ab"}).status_code == 200


def test_a_form_that_is_known_waits_for_no_trial(live: Live) -> None:
    body = {"structured_outputs": {"regex": "a known one"}, "max_tokens": 3}
    assert live.chat(**body).status_code == 200
    release = threading.Event()
    trial = live.serving.tokenizers._forms.submit(release.wait, TIMEOUT)
    try:
        assert live.chat(**body).status_code == 200
        assert not trial.done()
    finally:
        release.set()


def test_a_form_that_bans_leave_nothing_of_is_a_400(live: Live) -> None:
    (one,) = {each for each in range(live.model.vocab_size) if live.model.tokenizer.decode([each]) == "1"}
    error = error_of(live.chat(structured_outputs={"regex": "a1b"}, banned_tokens=[one]))
    assert error["code"] == "no_token_allowed"
    assert "structure leaves no token to choose after 1 tokens" in error["message"]


def test_a_schema_without_end_holds_up_nobody(live: Live) -> None:
    """Such as an array that must have such an array: no text is whole."""
    for schema, code in (  # of the first all is forced, without end
        ({"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}, "invalid_structure"),
        ({"type": "array", "minItems": 1, "items": {"$ref": "#"}}, "no_token_allowed"),
    ):
        error = error_of(live.chat(structured_outputs={"json": schema}, max_tokens=50))
        assert error["code"] == code
    assert live.chat(max_tokens=3).status_code == 200


def test_a_deep_body_is_a_400(live: Live) -> None:
    body = '{"model": "tiny", "messages": [{"role": "user", "content": "x"}], "structured_outputs": {"json": '
    deep = live.client.post(
        "/v1/chat/completions",
        content=body + '{"items": ' * 20_000 + "{}" + "}" * 20_002,
        headers={"Content-Type": "application/json"},
    )
    assert error_of(deep)["message"].startswith("the body must be JSON in UTF-8, neither deep nor")
    nested: dict[str, Any] = {}
    for _ in range(100):
        nested = {"items": nested}
    assert "at most 64 deep" in error_of(live.chat(structured_outputs={"json": nested}))["message"]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "weather"}}])
def test_a_required_call_is_made(choice: Any, stream: bool, client: openai.OpenAI) -> None:
    requested: Any = {
        "model": "tiny",
        "messages": CHAT,
        "tools": [WEATHER, CLOCK],
        "tool_choice": choice,
        "max_tokens": 400,
    }
    requested["parallel_tool_calls"] = False
    if stream:
        with client.chat.completions.stream(**requested) as events:
            for _ in events:
                pass
            (answer,) = events.get_final_completion().choices
    else:
        (answer,) = client.chat.completions.create(**requested).choices  # type: ignore[call-overload]
    assert answer.finish_reason == "tool_calls"
    assert not answer.message.content
    (call,) = answer.message.tool_calls
    assert call.id.startswith("call_")
    assert call.function.name in ("weather", "clock")
    if call.function.name == "weather":
        jsonschema.validate(json.loads(call.function.arguments), WEATHER["function"]["parameters"])


def test_a_stream_has_what_the_whole_answer_has(client: openai.OpenAI) -> None:
    requested: Any = {
        "model": "tiny",
        "messages": CHAT,
        "tools": [WEATHER],
        "tool_choice": "required",
        "max_tokens": 150,
    }
    (whole,) = client.chat.completions.create(**requested).choices
    calls: dict[int, list[str]] = {}
    for chunk in client.chat.completions.create(**requested, stream=True):
        for call in chunk.choices[0].delta.tool_calls or []:
            received = calls.setdefault(call.index, ["", ""])
            received[0] += call.function.name or ""
            received[1] += call.function.arguments or ""
        reason = chunk.choices[0].finish_reason or ""
    wanted = [[call.function.name, call.function.arguments] for call in whole.message.tool_calls or []]
    assert [calls[index] for index in sorted(calls)] == wanted
    assert reason == whole.finish_reason


def test_the_loop_of_tools(client: openai.OpenAI) -> None:
    """A call, its result in a message of role `tool`, and an answer."""
    first = client.chat.completions.create(
        model="tiny", messages=CHAT, tools=[WEATHER], tool_choice="required", parallel_tool_calls=False, max_tokens=300
    )
    message = first.choices[0].message
    assert message.tool_calls
    back = [*CHAT, message, {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}]
    second = client.chat.completions.create(model="tiny", messages=back, tools=[WEATHER], max_tokens=20)
    assert second.choices[0].finish_reason in ("stop", "length")
    free = client.chat.completions.create(
        model="tiny", messages=back, tools=[WEATHER], tool_choice="none", max_tokens=20
    )
    assert free.choices[0].message.tool_calls is None


def test_a_template_without_tools_is_a_400(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    from server.live import tiny

    with serving(tiny(trained_tokenizer)) as other:
        error = error_of(other.chat(tools=[WEATHER]))
    assert (error["param"], error["message"]) == (
        "tools",
        "the model's chat template has no place for tools: leave tools out, or use a model that calls tools",
    )
