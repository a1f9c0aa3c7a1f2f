"""OpenAI's client calls tools of models that write calls by heart, in four shapes of templates."""

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import openai
import pytest

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")

from server.live import TIMEOUT, serving
from server.tool_models import TEXTS, TOOLS, Call, calls_of, trained_to_call

ONE, TWO = "What is the weather in Lima?", "What are the weather and time in Oslo?"
SCHEMA = TOOLS[0]["function"]["parameters"]
NIGHTLY = pytest.mark.nightly
SHAPES = (
    "added",
    "thinks, bare",
    *(pytest.param(each, marks=NIGHTLY) for each in ("special", "bare", "thinks", "bare list")),
)


class Asking:
    """A server's client, for one model."""

    def __init__(self, client: openai.OpenAI, shape: str) -> None:
        self.client, self.shape = client, shape
        self.has_two, self.thinks = shape != "bare", shape.startswith("thinks")

    def __call__(self, question: str, *, stream: bool, **more: Any) -> tuple[str, list[Call], str]:
        """The content, calls and finish reason of an answer; reasoning is left out of the content."""
        messages = more.pop("messages", [{"role": "user", "content": question}])
        requested: Any = {"model": "tiny", "messages": messages, "tools": TOOLS, "max_tokens": 120, **more}
        content, calls, reason = "", {}, ""
        if stream:
            for chunk in self.client.chat.completions.create(**requested, stream=True):
                (choice,) = chunk.choices
                content += choice.delta.content or ""
                reason = choice.finish_reason or reason
                for call in choice.delta.tool_calls or []:
                    assert (call.index in calls) == (call.id is None)
                    name, arguments = calls.get(call.index, ("", ""))
                    calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
        else:
            (choice,) = self.client.chat.completions.create(**requested).choices
            content, reason = choice.message.content or "", choice.finish_reason
            made = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
            calls = dict(enumerate(made))
        assert [*calls] == [*range(len(calls))]
        return content.rpartition("</think>\n\n")[2] if self.thinks else content, [*calls.values()], reason


@pytest.fixture(scope="module", params=SHAPES)
def ask(request: pytest.FixtureRequest) -> Iterator[Asking]:
    with (
        serving(trained_to_call(request.param)) as live,
        openai.OpenAI(base_url=f"{live.url}/v1", api_key="none", timeout=TIMEOUT, max_retries=0) as client,
    ):
        yield Asking(client, request.param)


@pytest.fixture(params=[False, True], ids=["whole", "streamed"])
def stream(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


def test_auto_calls_as_the_model_was_trained(ask: Asking, stream: bool) -> None:
    """A call comes back as a call, and text as text, JSON and brackets in it too."""
    for question in (ONE, "What is the time in Cairo?", *([TWO] if ask.has_two else [])):
        assert ask(question, stream=stream) == ("", calls_of(question), "tool_calls")
    for question, text in TEXTS.items():
        assert ask(question, stream=stream) == (text, [], "stop")


def test_required_and_named_calls(ask: Asking, stream: bool) -> None:
    for question in (ONE, *TEXTS):
        content, calls, reason = ask(question, stream=stream, tool_choice="required", parallel_tool_calls=False)
        assert (content, len(calls), reason) == ("", 1, "tool_calls")
        jsonschema.validate(json.loads(calls[0][1]), SCHEMA)
        if question == ONE and not ask.thinks:  # it has learned to think first
            assert calls == calls_of(ONE)
        for name in ("weather", "clock"):
            named = {"type": "function", "function": {"name": name}}
            content, calls, reason = ask(question, stream=stream, tool_choice=named)
            assert (content, [called for called, _ in calls], reason) == ("", [name], "tool_calls")
            jsonschema.validate(json.loads(calls[0][1]), SCHEMA)


def test_none_and_one_at_a_time(ask: Asking, stream: bool) -> None:
    _, calls, reason = ask(ONE, stream=stream, tool_choice="none")
    assert (calls, reason in ("stop", "length")) == ([], True)
    if ask.has_two:
        assert ask(TWO, stream=stream, parallel_tool_calls=False) == ("", calls_of(TWO)[:1], "tool_calls")


def test_a_stop_text_within_a_call_leaves_text(ask: Asking, stream: bool) -> None:
    content, calls, reason = ask(ONE, stream=stream, stop=["city"], tool_choice="required")
    assert (calls, reason) == ([], "stop")
    assert content.endswith(': {"')
    assert ask(ONE, stream=stream, max_tokens=12, tool_choice="required")[2] == "length"


def test_the_loop_of_tools(ask: Asking, stream: bool) -> None:
    first = ask.client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "What is the weather in Rome?"}],
        tools=TOOLS,
        max_tokens=120,
    )
    message = first.choices[0].message
    assert message.tool_calls
    message.content = None  # of a model that thinks, its reasoning
    result = {"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "sunny"}
    messages = [{"role": "user", "content": "What is the weather in Rome?"}, message, result]
    assert ask("", messages=messages, stream=stream) == ("It is sunny.", [], "stop")


def test_chat_template_kwargs_reach_the_template(ask: Asking, stream: bool) -> None:
    """As vLLM's clients send them; a name that the template does not have is refused."""
    more = {"stream": stream, "tool_choice": "none"}
    if ask.thinks:
        bodies = [{"chat_template_kwargs": {"enable_thinking": each}} for each in (True, False)]
        assert ask("Hi!", extra_body=bodies[0], **more) == ask("Hi!", **more)
        with ask.client.chat.completions.with_streaming_response.create(
            model="tiny", messages=[{"role": "user", "content": "Hi!"}], max_tokens=1, extra_body=bodies[1]
        ) as reply:
            prompt_tokens = json.loads(reply.read())["usage"]["prompt_tokens"]
        without = ask.client.chat.completions.create(
            model="tiny", messages=[{"role": "user", "content": "Hi!"}], max_tokens=1
        )
        assert without.usage
        assert prompt_tokens > without.usage.prompt_tokens  # the empty think block
    with pytest.raises(openai.BadRequestError, match="chat template has no 'enable_thinkin'") as error:
        ask("Hi!", extra_body={"chat_template_kwargs": {"enable_thinkin": False}}, **more)
    assert error.value.param == "chat_template_kwargs"
