"""The plain-text part of the Responses API, as OpenAI's own client sees it."""

from dataclasses import replace

import openai
import pytest

from server.live import TIMEOUT
from setblock import DecodingSettings, generate
from setblock.decoding.samplers import EntropyPrefix

TEXT = "Tom has 12 apples and buys 3 bags of 4 apples each."
SETTINGS = DecodingSettings(method="sbd", sampler=EntropyPrefix(gamma=0.5), max_new_tokens=40, block_size=8)
SBD = {"method": "sbd", "gamma": 0.5, "block_size": 8}
ASKED = {"model": "tiny", "max_output_tokens": 40, "extra_body": SBD}


@pytest.fixture(scope="module")
def client(live):
    with openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client:
        yield client


def test_a_text_is_answered_as_generate_does(client, live):
    expected = generate(live.model, TEXT, settings=SETTINGS)
    reply = client.responses.create(input=TEXT, **ASKED)
    assert reply.output_text == expected.text
    assert (reply.object, reply.model, reply.error) == ("response", "tiny", None)
    assert reply.usage.output_tokens == expected.num_tokens
    assert reply.usage.total_tokens == reply.usage.input_tokens + expected.num_tokens
    assert reply.usage.num_forwards == expected.num_forwards
    (message,) = reply.output
    assert (message.type, message.role, message.status) == ("message", "assistant", reply.status)


@pytest.mark.parametrize("most", [3, 40])
def test_an_answer_that_is_cut_is_incomplete(client, live, most):
    expected = generate(live.model, TEXT, settings=replace(SETTINGS, max_new_tokens=most))
    reply = client.responses.create(input=TEXT, **{**ASKED, "max_output_tokens": most})
    assert reply.status == ("incomplete" if expected.finish_reason == "length" else "completed")
    reason = None if reply.incomplete_details is None else reply.incomplete_details.reason
    assert reason == ("max_output_tokens" if expected.finish_reason == "length" else None)


def test_a_stream_adds_up_to_the_response(client):
    whole = client.responses.create(input=TEXT, **ASKED)
    events = list(client.responses.create(input=TEXT, stream=True, **ASKED))
    kinds = [event.type for event in events]
    assert kinds[:4] == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
    ]  # fmt: skip
    assert kinds[-4:] == [
        "response.output_text.done", "response.content_part.done", "response.output_item.done", f"response.{whole.status}",
    ]  # fmt: skip
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert "".join(event.delta for event in events[4:-4]) == whole.output_text == events[-4].text
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage == whole.usage


def test_the_client_s_own_stream_helper_works(client):
    """For a response that is whole: of one that was cut it gives no final response, whoever serves it."""
    stop = client.responses.create(input=TEXT, **ASKED).output_text[5:8]
    body = {**SBD, "stop": stop}
    with client.responses.stream(model="tiny", input=TEXT, max_output_tokens=40, extra_body=body) as stream:
        text = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
        final = stream.get_final_response()
    assert final.output_text == text != ""
    assert (final.status, stop in text) == ("completed", False)


def test_a_conversation_goes_on_with_what_came_back(client, live):
    """The output of a response is input for the next, instructions are a system message, and parts are one text."""
    first = client.responses.create(input=TEXT, **ASKED)
    parts = [{"type": "input_text", "text": "And "}, {"type": "input_text", "text": "now?"}]
    conversation = [{"role": "user", "content": TEXT}, *first.output, {"role": "user", "content": parts}]
    second = client.responses.create(input=conversation, instructions="Be brief.", **ASKED)
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": TEXT},
        {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "And now?"},
    ]
    assert second.output_text == generate(live.model, messages, settings=SETTINGS).text


@pytest.mark.parametrize(
    ("asked", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "unsupported_parameter"),
        ({"tools": [{"type": "function", "name": "f"}]}, "tools", "unsupported_parameter"),
        ({"text": {"format": {"type": "json_object"}}}, "text", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"input": []}, "input", "invalid_value"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input.0.content", "invalid_value"),
        ({"max_output_tokens": 0}, "max_output_tokens", "invalid_value"),
        ({"max_output_tokens": 512}, "max_output_tokens", "invalid_value"),
        ({"input": "apples " * 2000}, "input", "context_length_exceeded"),
        ({"temperature": -1}, "temperature", "invalid_value"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_what_it_does_not_have_is_named(client, asked, param, code, stream):
    with pytest.raises(openai.BadRequestError) as wrong:
        client.responses.create(**{"model": "tiny", "input": TEXT, "stream": stream, **asked})
    assert (wrong.value.param, wrong.value.code) == (param, code)


def test_names_of_the_other_api_are_refused_with_the_right_one(live):
    error = live.post("/v1/responses", input=TEXT, max_tokens=3).json()["error"]
    assert error["message"] == "max_tokens is not supported: use max_output_tokens"
    error = live.post("/v1/responses", input=TEXT, messages=[]).json()["error"]
    assert error["code"] == "unknown_parameter"
