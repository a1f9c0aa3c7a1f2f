"""What a body may say, and what is said of one that is wrong: the parameter, and what would be valid."""

import json

import pytest

from server.live import CONTEXT, parts, serving, tiny
from setblock.decoding.samplers import FixedCount
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.limits import EngineLimits
from setblock.server.api.protocol import ChatBody
from setblock.server.api.settings import settings_of

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
MESSAGES = [{"role": "user", "content": "Tom"}]
TOOL = {"type": "function", "function": {"name": "f"}}


def test_chat_template_kwargs_are_the_server_s_unless_a_request_says_others(tokenizer):
    model = tiny(tokenizer)
    model.tokenizer.chat_template += "{{ style or '' }}{{ more or '' }}"
    with serving(model, chat_template_kwargs={"style": "abc"}) as live:
        bodies = ({}, {"style": "abcdef"}, {"more": "abc"}, {"style": None})
        requested = [live.chat(max_tokens=1, chat_template_kwargs=each).json() for each in bodies]
        assert error_of(live.chat(chat_template_kwargs={"styl": 1}))["param"] == "chat_template_kwargs"
        assert error_of(live.chat(chat_template_kwargs={"style": "<|endoftext|>"}))["param"] == "chat_template_kwargs"
    for each, style in zip(requested, ("abc", "abcdef", "abcabc", ""), strict=True):
        text = f"user: Tom has 12 apples.\nassistant:{style}"
        assert each["usage"]["prompt_tokens"] == len(model.tokenizer(text).input_ids)


WRONG = {
    "temperature": ({"temperature": -1}, "temperature must be a finite number of at least 0, not -1.0"),
    "top_p": ({"top_p": 0}, "top_p must be above 0 and at most 1, not 0.0"),
    "min_p": ({"min_p": 1.5}, "min_p must be between 0 and 1, not 1.5"),
    "top_k": ({"top_k": -1}, "top_k must be at least 1, or 0 for all, not -1"),
    "n": ({"n": 1000}, "n must be between 1 and 64, not 1000"),  # the server's limit, not the library's
    "seed": ({"seed": 2**63}, "seed must be a number of 64 bits"),
    "max_tokens": ({"max_tokens": 0}, "max_tokens must be at least 1, not 0"),
    "max_completion_tokens": ({"max_completion_tokens": 0}, "max_completion_tokens must be at least 1, not 0"),
    "min_tokens": ({"min_tokens": 9, "max_tokens": 8}, "min_tokens must be at most max_tokens, 8, not 9"),
    "block_size": ({"block_size": 65}, "block_size must be between 1 and 64, not 65"),
    "gamma": ({"gamma": -0.1}, "gamma must be at least 0, not -0.1"),
    "sampler": ({"sampler": "luck"}, "sampler must be one of confidence-threshold, "),
    "method": ({"method": "fast"}, "method must be one of 'sbd', 'exact' or 'ntp', not 'fast'"),
    "repetition_penalty": ({"repetition_penalty": 0}, "repetition_penalty must be between 0.01 and 100, not 0.0"),
    "logit_bias": ({"logit_bias": {"999999": 1}}, "token ids of logit_bias must be between 0 and "),
    "banned_tokens": ({"banned_tokens": [-1]}, "token ids of banned_tokens must be between 0 and "),
    "stop": ({"stop": ["x"] * 17}, "stop must have at most 16 items, not 17"),
    "stop.0": ({"stop": "x" * 257}, "stop.0 must be at most 256 characters long, not "),
    "top_logprobs": ({"top_logprobs": 2}, "top_logprobs needs logprobs to be true"),
    "messages": ({"messages": []}, "messages must not be empty"),
    "messages.0.role": (
        {"messages": [{"role": "function", "content": "x"}]},
        "messages.0.role must be one of 'system', ",
    ),
    "messages.0.content": (
        {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]},
        "messages.0.content must be a text, or parts of type 'text'; no images, audio or files, not [{'type': 'image_url'}]",
    ),
}
ODD = [
    ({"max_tokens": 10**20}, "max_tokens must be at most 2147483647, not 100000000000000000000"),
    ({"min_tokens": 10**20}, "min_tokens must be at most 2147483647, not 100000000000000000000"),
    ({"top_k": 10**20}, "top_k must be at most 2147483647, not 100000000000000000000"),
    ({"block_size": 10**20}, "block_size must be between 1 and 64, not 100000000000000000000"),
    ({"messages": [{"role": "user"}]}, "messages.0.content is required"),
    ({"messages": [{"role": "user", "content": None}]}, "messages.0.content must be a text, or parts of type 'text'"),
    ({"logit_bias": [5]}, "logit_bias must be an object, not [5]"),
    ({"stop": 5}, "stop must be a text or a list of texts, not 5"),
    ({"stop": [5]}, "stop.0 must be a text, not 5"),
    ({"sampler_options": dict.fromkeys("abcdefghijklmnopq", 1)}, "sampler_options must have at most 16 items, not 17"),
    ({"sampler_options": {"a": [1]}}, "sampler_options.a must be a number, not [1]"),
    ({"tools": [{"type": "tool"}]}, "tools.0.type must be 'function', not 'tool'"),
    (
        {"tools": [{"type": "function", "function": {"name": "a b"}}]},
        "tools.0.function.name must match ^[a-zA-Z0-9_-]{1,64}$, not 'a b'",
    ),
    ({"tool_choice": 5}, "tool_choice must be one of 'none', 'auto' or 'required', not 5"),
    ({"tool_choice": {"type": "function"}}, "tool_choice.function is required"),
    ({"gamma": "x"}, "gamma must be a number, not 'x'"),
    ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
    ({"max_tokens": "many"}, "max_tokens must be a whole number, not 'many'"),
    ({"max_tokens": 2.5}, "max_tokens must be a whole number, not 2.5"),
    ({"stream": "perhaps"}, "stream must be true or false, not 'perhaps'"),
    ({"sampler": 5}, "sampler must be a text, not 5"),
]
UNSUPPORTED = {
    "functions": [TOOL],
    "presence_penalty": 0.5,
    "frequency_penalty": -1,
    "modalities": ["text", "audio"],
    "store": True,
    "web_search_options": {},
}
NEUTRAL = {
    "tools": [], "tool_choice": "none", "parallel_tool_calls": None, "structured_outputs": None,
    "response_format": {"type": "text"}, "presence_penalty": 0.0,
    "frequency_penalty": 0, "store": False, "user": "someone", "metadata": {"a": "b"}, "stop": None, "n": None,
    "logit_bias": None, "seed": None, "temperature": None, "stream_options": None, "logprobs": False,
}  # fmt: skip


def error_of(response, status=400):
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/json"
    (error,) = response.json().values()
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.mark.parametrize("param", WRONG)
def test_a_wrong_value_is_named_with_what_is_valid(live, param):
    body, message = WRONG[param]
    error = error_of(live.post(CHAT, **{"messages": MESSAGES, **body}))
    assert error["message"].startswith(message)
    assert error["param"] == param
    assert error["type"] == "invalid_request_error"


@pytest.mark.parametrize(("body", "message"), ODD)
def test_a_value_of_another_kind_or_size_is_named_with_what_is_valid(live, body, message):
    assert error_of(live.post(CHAT, **{"messages": MESSAGES, **body}))["message"].startswith(message)


@pytest.mark.parametrize("param", UNSUPPORTED)
def test_what_is_not_supported_is_refused_with_the_reason(live, param):
    error = error_of(live.chat(**{param: UNSUPPORTED[param]}))
    assert (error["param"], error["code"]) == (param, "unsupported_parameter")
    assert error["message"].startswith(f"{param} is not supported: ")


def test_what_asks_for_nothing_is_taken(live):
    assert live.chat(**NEUTRAL, max_tokens=2).status_code == 200


@pytest.mark.parametrize(("name", "value"), [("suffix", "x"), ("echo", True), ("best_of", 2)])
def test_completions_refuse_theirs(live, name, value):
    assert error_of(live.post(TEXT, prompt="Tom", **{name: value}))["code"] == "unsupported_parameter"


@pytest.mark.parametrize(
    ("path", "body", "param", "near"),
    [
        (CHAT, {"temprature": 1}, "temprature", ", did you mean 'temperature'?"),
        (CHAT, {"max_token": 1}, "max_token", ", did you mean 'max_tokens'?"),
        (CHAT, {"blocksize": 4}, "blocksize", ", did you mean 'block_size'?"),
        (CHAT, {"xyzzy": 4}, "xyzzy", ""),
        (CHAT, {"messages": [{"rolle": "user", "content": "a"}]}, "messages.0.rolle", ", did you mean 'role'?"),
        (CHAT, {"stream_options": {"include_use": 1}}, "stream_options.include_use", ", did you mean 'include_usage'?"),
        (TEXT, {"promt": "Tom"}, "promt", ", did you mean 'prompt'?"),
    ],
)
def test_an_unknown_parameter_is_an_error_that_names_the_near_one(live, path, body, param, near):
    error = error_of(live.post(path, **({"messages": MESSAGES} if path == CHAT else {}) | body))
    assert (error["param"], error["code"]) == (param, "unknown_parameter")
    assert error["message"] == f"unknown parameter: {param!r}{near}"


def test_without_a_limit_an_answer_has_the_room_that_is_left(served_model, monkeypatch):
    """In the context, or in the cache where that is smaller; each prompt of several has its own."""
    monkeypatch.setattr(served_model, "end_of_text_ids", ())
    for cache, most in ((1024, CONTEXT), (320, 320)):
        with serving(served_model, engine=EngineLimits(kv_tokens=cache)) as live:
            usage = live.chat(method="sbd", gamma="inf").json()["usage"]
            assert usage["total_tokens"] == most > 256 + usage["prompt_tokens"]
            short, long = [7], [7] * 40
            several = live.post(TEXT, prompt=[short, long], method="sbd", gamma="inf").json()
            assert several["usage"]["total_tokens"] == 2 * most
            assert {each["finish_reason"] for each in several["choices"]} == {"length"}


def test_requests_get_the_server_s_defaults(served_model):
    """One that names another method gets that method's own."""

    def passes(live, **requested):
        usage = live.chat(max_tokens=24, min_tokens=24, **requested).json()["usage"]
        return usage["num_forwards"], usage["completion_tokens"]

    default = DecodingSettings(method="sbd", sampler=FixedCount(12), block_size=12)
    with serving(served_model, default=default) as fast, serving(served_model) as plain:
        assert plain.client.get("/v1/models").json()["data"][0]["setblock"]["method"] == "exact"
        assert fast.client.get("/v1/models").json()["data"][0]["setblock"]["method"] == "sbd"
        requested = {"method": "sbd", "sampler": "fixed-count", "sampler_options": {"count": 12}, "block_size": 12}
        assert passes(fast) == passes(fast, method="sbd") == passes(plain, **requested) == (3, 24)
        assert passes(fast, block_size=6) == passes(plain, **(requested | {"block_size": 6}))
    for method in ("exact", "ntp"):
        body = ChatBody(model="tiny", messages=MESSAGES, method=method, seed=0)
        assert settings_of(body, default=default) == settings_of(body, default=DecodingSettings())


def test_several_answers_at_temperature_0_are_copies(live):
    found = live.chat(n=3, max_tokens=8).json()["choices"]
    assert len({each["message"]["content"] for each in found}) == 1


@pytest.mark.parametrize(
    "prompt", ["", " \n", [], [[]], [1, "a"], [-1], [10**9], [True], {"a": 1}, ["a"] * 65, [[1.5]]]
)
def test_prompts_that_are_none(live, prompt):
    assert error_of(live.post(TEXT, prompt=prompt))["param"] == "prompt"


def test_a_prompt_without_room_names_the_context(live):
    long = live.chat("apples " * 2000)
    assert error_of(long)["code"] == "context_length_exceeded"
    assert "this model's context holds 512" in error_of(long)["message"]
    error = error_of(live.chat(max_tokens=512))
    assert error["param"] == "max_tokens"


def test_limits_that_differ_are_not_guessed_at(live):
    assert error_of(live.chat(max_tokens=3, max_completion_tokens=4))["param"] == "max_completion_tokens"
    assert live.chat(max_tokens=3, max_completion_tokens=3).status_code == 200


def test_answers_are_bounded_over_prompts(live):
    error = error_of(live.post(TEXT, prompt=["a"] * 20, n=4))
    assert error["message"] == "n must be between 1 and 3 with 20 prompts, not 4"


def test_the_template_s_refusal_is_reported(live):
    messages = [{"role": "user", "content": "a"}, {"role": "system", "content": "b"}]
    error = error_of(live.post(CHAT, messages=messages))
    assert error["message"].startswith("the chat template refuses the messages: the system message comes first; ")
    assert error["param"] == "messages"


@pytest.mark.filterwarnings("ignore:the chat template has no role developer")
def test_developer_is_system(live):
    """Where the template does not know the role."""
    answers = [
        live.post(CHAT, messages=[{"role": role, "content": "Be brief."}, *MESSAGES], max_tokens=4, temperature=0)
        for role in ("system", "developer")
    ]
    assert answers[0].json()["choices"] == answers[1].json()["choices"]


def test_what_clients_send_back_of_other_servers(live):
    """Nothing is made of keys that hold nothing, known or not; what holds something is used, or refused by name."""
    reply = live.chat(max_tokens=2).json()["choices"][0]["message"]
    empty = {"reasoning_content": None, "provider_specific_fields": None, "thinking_blocks": [], "audio": None}
    assert live.post(CHAT, messages=[*MESSAGES, {**reply, **empty}, *MESSAGES], max_tokens=2).status_code == 200
    thought = [*MESSAGES, {**reply, "reasoning_content": "Hm."}, *MESSAGES]
    assert live.post(CHAT, messages=thought, max_tokens=2).status_code == 200
    unknown = [*MESSAGES, {**reply, "provider_specific_fields": {"a": 1}}, *MESSAGES]
    error = error_of(live.post(CHAT, messages=unknown))
    assert "provider_specific_fields" in error["message"]


@pytest.mark.parametrize("arguments", ["{", "[1]", "[" * 9999])
def test_arguments_that_are_no_json_object(live, arguments):
    call = {"id": "a", "type": "function", "function": {"name": "f", "arguments": arguments}}
    back = [*MESSAGES, {"role": "assistant", "content": None, "tool_calls": [call]}]
    error = error_of(live.post(CHAT, messages=back))
    assert error["message"].startswith("arguments of a call in message 2 must be a JSON object")
    assert error["param"] == "messages"


def test_messages_come_back_as_they_were_given(live):
    reply = live.chat(max_tokens=2).json()["choices"][0]["message"]
    again = [*MESSAGES, {**reply, "tool_calls": None, "annotations": []}, *MESSAGES]
    assert live.post(CHAT, messages=again, max_tokens=2).status_code == 200
    called = [{"role": "assistant", "content": "x", "function_call": {"name": "f", "arguments": "{}"}}]
    assert error_of(live.post(CHAT, messages=called))["code"] == "unsupported_parameter"


def test_parts_of_a_message_are_one_text(live):
    def prompt_tokens_of(content):
        reply = live.post(CHAT, messages=[{"role": "user", "content": content}], max_tokens=8).json()
        return reply["choices"], reply["usage"]["prompt_tokens"]

    assert prompt_tokens_of("Tom has") == prompt_tokens_of(
        [{"type": "text", "text": "Tom"}, {"type": "text", "text": " has"}]
    )


def test_infinite_gamma_is_a_word(live):
    assert live.chat(gamma="inf", max_tokens=8).status_code == 200
    assert live.chat(sampler_options={"gamma": "inf"}, max_tokens=8).status_code == 200
    assert "given more than once" in error_of(live.chat(gamma=1, sampler_options={"gamma": 1}))["message"]
    assert live.chat(sampler="fixed-count", sampler_options={"count": 3}, max_tokens=8).status_code == 200


def test_a_stream_s_errors_are_plain_ones_before_it_begins(live):
    assert error_of(live.chat(stream=True, top_p=3))["param"] == "top_p"
    assert parts(live.chat(stream=True, max_tokens=3))[-1] == "[DONE]"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b"nul",
        b"[" * 100_000,
        b'{"model": 1e999}',
        b'{"seed": ' + b"9" * 5000 + b"}",
    ],
)
def test_bodies_that_are_no_request(live, body):
    response = live.client.post(CHAT, content=body, headers={"content-type": "application/json"})
    error = error_of(response)
    assert error["type"] == "invalid_request_error"
    assert "Input should be" not in error["message"]
    assert error["message"].startswith(("the body must be ", "a JSON body is required", "model "))


def test_text_that_is_no_unicode(live):
    for content in ("\ud800", [{"type": "text", "text": "\udfff"}]):
        body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": content}]})
        error_of(live.client.post(CHAT, content=body, headers={"content-type": "application/json"}))
    body = json.dumps({"model": "\ud800", "messages": MESSAGES, "\udc00": 1})
    error_of(live.client.post(CHAT, content=body, headers={"content-type": "application/json"}))


def test_nothing_there_is_an_error_object_too(live):
    message = "there is nothing at /v1/responses: ask /v1/chat/completions or /v1/completions"
    assert error_of(live.post("/v1/responses", input="Tom"), 404)["message"] == message
    error_of(live.client.get(CHAT), 405)
