"""Clients made for OpenAI's API work unchanged, and get what the library gives."""

from dataclasses import replace

import openai
import pytest

from server.live import TIMEOUT, serving
from setblock import DecodingSettings, generate
from setblock.decoding.samplers import EntropyPrefix

TEXT = "Tom has 12 apples and buys 3 bags of 4 apples each."
CHAT = [{"role": "user", "content": TEXT}]
SETTINGS = DecodingSettings(method="sbd", sampler=EntropyPrefix(gamma=0.5), max_new_tokens=40, block_size=8)
SBD = {"method": "sbd", "gamma": 0.5, "block_size": 8}


@pytest.fixture(scope="module")
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client:
        yield client


@pytest.fixture(scope="module")
def expected(live):
    return generate(live.model, TEXT, settings=SETTINGS)


def test_chat_is_what_generate_gives(client, expected):
    reply = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=40, extra_body=SBD)
    (choice,) = reply.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.finish_reason == expected.finish_reason
    assert reply.usage.completion_tokens == expected.num_tokens
    assert reply.usage.num_forwards == expected.num_forwards
    assert reply.usage.tokens_per_forward == pytest.approx(expected.tokens_per_forward)
    assert sum(reply.usage.passes.values()) == expected.num_forwards


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_a_stream_adds_up_to_the_answer(client, live, method):
    expected = generate(live.model, TEXT, settings=replace(SETTINGS, method=method, sampler=None))
    chunks = list(
        client.chat.completions.create(
            model="tiny",
            messages=CHAT,
            max_completion_tokens=40,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"method": method, "block_size": 8},
        )
    )
    *pieces, last = chunks
    assert pieces[0].choices[0].delta.role == "assistant"
    assert "".join(piece.choices[0].delta.content or "" for piece in pieces) == expected.text
    assert [piece.choices[0].finish_reason for piece in pieces if piece.choices[0].finish_reason] == [
        expected.finish_reason
    ]
    assert (last.choices, last.usage.num_forwards) == ([], expected.num_forwards)
    assert {piece.id for piece in chunks} == {last.id}


def test_a_stream_has_no_usage_unless_requested(client):
    chunks = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=4, stream=True)
    assert all(chunk.usage is None and chunk.choices for chunk in chunks)


@pytest.mark.parametrize("stream", [False, True])
def test_logprobs_are_those_of_the_library(client, live, stream):
    expected = generate(live.model, TEXT, settings=replace(SETTINGS, logprobs=2))
    reply = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=40, logprobs=True, top_logprobs=2, stream=stream, extra_body=SBD
    )
    found = [each.choices[0].logprobs for each in reply if each.choices[0].logprobs] if stream else [
        reply.choices[0].logprobs
    ]  # fmt: skip
    (logprobs,) = found
    assert [each.logprob for each in logprobs.content] == pytest.approx(
        [e.logprob for e in expected.logprobs], abs=1e-4
    )
    assert all(len(each.top_logprobs) == 2 for each in logprobs.content)
    written = b"".join(bytes(each.bytes) for each in logprobs.content)  # half characters, too
    assert written.decode(errors="replace") == live.model.tokenizer.decode(expected.token_ids)
    assert all(bytes(each.bytes).decode(errors="replace") == each.token for each in logprobs.content)


def test_completions(client, live):
    expected = generate(live.model, TEXT, settings=replace(SETTINGS, logprobs=1), raw=True)
    ids = live.model.tokenizer(TEXT).input_ids
    reply = client.completions.create(model="tiny", prompt=[TEXT, TEXT], max_tokens=40, logprobs=1, extra_body=SBD)
    by_id = client.completions.create(model="tiny", prompt=ids, max_tokens=40, extra_body=SBD)
    assert [choice.text for choice in reply.choices] == [expected.text] * 2
    assert [choice.index for choice in reply.choices] == [0, 1]
    assert by_id.choices[0].text == expected.text
    logprobs = reply.choices[0].logprobs
    assert len(logprobs.tokens) == len(logprobs.token_logprobs) == len(logprobs.text_offset) == expected.num_tokens
    for name, offset in zip(logprobs.tokens, logprobs.text_offset, strict=True):
        assert name.startswith("bytes:\\x") or expected.text[offset:].startswith(name)
    assert all(len(each) == 1 for each in logprobs.top_logprobs)
    pieces = client.completions.create(model="tiny", prompt=TEXT, max_tokens=40, stream=True, extra_body=SBD)
    assert "".join(piece.choices[0].text for piece in pieces) == expected.text


def test_several_answers_are_those_of_consecutive_seeds(client, live):
    reply = client.chat.completions.create(
        model="tiny", messages=CHAT, max_tokens=20, temperature=1.0, seed=2**63 - 1, n=2, extra_body=SBD
    )
    seeds = (2**63 - 1, -(2**63))
    settings = replace(SETTINGS, max_new_tokens=20, temperature=1.0)
    expected = [generate(live.model, TEXT, settings=replace(settings, seed=seed)).text for seed in seeds]
    assert [choice.message.content for choice in reply.choices] == expected
    free = [client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=20, temperature=5) for _ in "ab"]
    assert free[0].choices[0].message.content != free[1].choices[0].message.content


def test_stop_strings_end_the_answer_before_them(client, expected):
    stop = expected.text[5:8]
    reply = client.chat.completions.create(model="tiny", messages=CHAT, max_tokens=40, stop=stop, extra_body=SBD)
    assert reply.choices[0].message.content == expected.text.partition(stop)[0]
    assert reply.choices[0].finish_reason == "stop"


def test_events_have_what_each_pass_revealed(client, expected):
    chunks = list(
        client.chat.completions.create(
            model="tiny", messages=CHAT, max_tokens=40, stream=True, extra_body={**SBD, "events": True}
        )
    )
    events = [chunk.choices[0].pass_event for chunk in chunks if hasattr(chunk.choices[0], "pass_event")]
    assert [event["number"] for event in events] == list(range(expected.num_forwards))
    tokens = chunks[-1].choices[0].tokens
    assert [token["token_id"] for token in tokens] == expected.token_ids
    assert [token["revealed_by"] for token in tokens] == expected.revealed_by
    revealed = {each["index"]: (each["token_id"], event["number"]) for event in events for each in event["revealed"]}
    assert [revealed[index][0] for index in range(len(tokens))] == expected.token_ids


def test_models(client, live):
    (model,) = client.models.list().data
    assert model.id == client.models.retrieve("tiny").id == "tiny"
    assert model.setblock["context_length"] == live.model.context_length


def test_errors_have_the_client_s_types(client):
    with pytest.raises(openai.BadRequestError) as wrong:
        client.chat.completions.create(model="tiny", messages=CHAT, top_p=2)
    assert (wrong.value.param, wrong.value.code, wrong.value.type) == (
        "top_p",
        "invalid_value",
        "invalid_request_error",
    )
    assert "top_p must be above 0 and at most 1, not 2.0" in str(wrong.value)
    with pytest.raises(openai.NotFoundError) as missing:
        client.chat.completions.create(model="gpt", messages=CHAT)
    assert (missing.value.param, missing.value.code) == ("model", "model_not_found")
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("gpt/4")


def test_keys(served_model):
    from setblock.server.http.access import Keys

    with serving(served_model, keys=Keys(["a-key-of-mine", "another-key"])) as live:
        for key, works in (("a-key-of-mine", True), ("another-key", True), ("a-key-of-min", False)):
            with openai.OpenAI(base_url=f"{live.url}/v1", api_key=key, max_retries=0, timeout=TIMEOUT) as client:
                if works:
                    assert client.models.list().data
                else:
                    with pytest.raises(openai.AuthenticationError, match="not one of this server's"):
                        client.models.list()
        assert live.client.get("/v1/models").status_code == live.client.post("/v1/completions").status_code == 401
        assert live.client.get("/v1/models").headers["www-authenticate"] == "Bearer"
        for path in ("/health", "/ready", "/metrics", "/", "/page/main.js"):
            assert live.client.get(path).status_code == 200


def test_langchain(live, expected):
    langchain = pytest.importorskip("langchain_openai", reason="langchain-openai is not installed")
    chat = langchain.ChatOpenAI(
        base_url=f"{live.url}/v1", api_key="none", model="tiny", max_tokens=40, timeout=TIMEOUT, extra_body=SBD
    )
    reply = chat.invoke(TEXT)
    assert reply.content == expected.text
    assert reply.usage_metadata["output_tokens"] == expected.num_tokens
    assert "".join(chunk.content for chunk in chat.stream(TEXT)) == expected.text
    (content,) = {message.content for message in chat.batch([TEXT, TEXT])}
    assert content == expected.text
