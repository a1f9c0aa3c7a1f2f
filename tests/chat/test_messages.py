"""Messages: one form, whoever sent them, and a refusal that names the message for everything else."""

import pytest

from setblock.chat.messages import Chat, arguments_of, chat_of, without_nulls
from setblock.errors import SetBlockError

USER = {"role": "user", "content": "a"}
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}


def called(**more: object) -> dict[str, object]:
    return {"role": "assistant", "tool_calls": [CALL], **more}


def test_parts_are_joined_and_nulls_are_left_out() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    chat = chat_of([{"role": "user", "content": parts, "name": None}, called(content=None), called()])
    assert chat == Chat([{"role": "user", "content": "ab"}, *[{**called(), "content": ""}] * 2])
    assert chat_of([{**USER, "tool_calls": []}, {**USER, "tool_calls": None}]).messages == [USER, USER]


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}', ' {"a":1}'])
@pytest.mark.parametrize("wrapped", [True, False])
def test_arguments_are_an_object_however_they_are_given(arguments: object, wrapped: bool) -> None:
    function = {"name": "add", "arguments": arguments}
    call = {"id": None, "function": function} if wrapped else function
    (message,) = chat_of([{"role": "assistant", "content": None, "tool_calls": [call]}]).messages
    (found,) = message["tool_calls"]
    assert found["type"] == "function"
    assert "id" not in found
    assert arguments_of(found) == {"a": 1}


@pytest.mark.parametrize("arguments", [None, "", "{}", {}])
def test_no_arguments(arguments: object) -> None:
    (message,) = chat_of([{"role": "assistant", "tool_calls": [{"name": "now", "arguments": arguments}]}]).messages
    assert arguments_of(message["tool_calls"][0]) == {}


def test_tools_may_be_json_and_may_lack_their_wrapper() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    for given in ([tool], [tool["function"]], '[{"name": "add", "parameters": {}}]', [{**tool, "strict": None}]):
        assert chat_of([USER], given).tools == [tool]
    for nothing in (None, [], "", "[]"):
        assert chat_of([USER], nothing).tools is None


def test_answers_of_weight_0_are_not_learned() -> None:
    answers = [{"role": "assistant", "content": "b", "weight": weight} for weight in (0, 1, None)]
    chat = chat_of([{**USER, "weight": 0}, *answers])
    assert chat.not_learned == {1}
    assert not any("weight" in message for message in chat.messages)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ({}, "messages must be a list of at least one message"),
        ([USER, {"role": "user", "content": 3}], "content of message 2 must be a text, or parts of type 'text', not 3"),
        ([{"role": "user", "content": [{"type": "image_url"}]}], "content of message 1 must be a text, or parts"),
        ([{"role": "assistant", "content": None}], "message 1 has no content"),
        ([{**USER, "weight": 0.5}], "weight of message 1 must be 0 or 1, not 0.5"),
        ([{**USER, "tool_calls": "a"}], "tool_calls of message 1 must be a list"),
        ([{**USER, "tool_calls": [{"function": {}}]}], "a call in message 1 must have a function with a name"),
        (
            [{**USER, "tool_calls": [{"name": "a", "arguments": "{"}]}],
            "arguments of a call in message 1 must be a JSON obj",
        ),
        (
            [{**USER, "tool_calls": [{"name": "a", "arguments": "[" * 99999}]}],
            "arguments of a call in message 1 must be",
        ),
        ([{**USER, "tool_calls": [{"name": "a", "arguments": '{"a": "\\ud800"}'}]}], "must be valid Unicode"),
        ([{**USER, "name": "\ud800"}], "message 1 must be valid Unicode"),
    ],
)
def test_what_is_no_chat(messages: object, said: str) -> None:
    with pytest.raises(SetBlockError) as raised:
        chat_of(messages)
    assert said in str(raised.value)
    assert "\n" not in str(raised.value)
    assert len(str(raised.value)) < 300


def test_a_chat_nested_too_deep_is_refused() -> None:
    nested: object = "a"
    for _ in range(2000):
        nested = [nested]
    with pytest.raises(SetBlockError, match="message 1 must not be nested more than 100 deep"):
        chat_of([{**USER, "more": nested}])
    with pytest.raises(SetBlockError, match="tool 1 must not be nested"):
        chat_of([USER], [{"name": "a", "parameters": {"a": nested}}])


def test_nulls_of_arrow_are_left_out_of_objects_alone() -> None:
    assert without_nulls({"a": None, "b": [{"c": None}, None], "d": {"e": 0}}) == {"b": [{}, None], "d": {"e": 0}}
