"""Shapes of records: ShareGPT's and Alpaca's are chats as OpenAI's, and all bad records are named together."""

import json
from typing import Any

import pytest

from data.conftest import CHATML, Write, chat
from setblock.chat.messages import Chat
from setblock.data.corpus.corpus import DocumentLimits
from setblock.data.corpus.tokenised import rows_of, tokenise
from setblock.data.section import DataSection
from setblock.data.texts.records import records_of
from setblock.data.texts.shapes import shaped, values_of
from setblock.errors import SetBlockError, SetBlockWarning

LIMITS = DocumentLimits(100)


def chats(path: Any, **columns: str) -> list[Chat]:
    section = DataSection(source=str(path), **columns).sources[0]
    shape, records = shaped(section, records_of(section))
    return [values_of(each, shape)[0] for each in records]


def test_sharegpt_and_alpaca_are_chats(write: Write) -> None:
    turns = [{"from": "human", "value": "a"}, {"from": "gpt", "value": "b", "weight": 0}]
    messages = [{"role": "system", "content": "s"}]
    assert chats(write("a.jsonl", [{"conversations": turns}])) == [Chat(chat("a", "b"), None, frozenset({1}))]
    assert chats(write("b.jsonl", [{"talk": turns, "system": "s"}]), messages_column="talk")[0].messages[:1] == messages
    assert chats(write("c.jsonl", [{"conversations": chat("a", "b")}])) == [Chat(chat("a", "b"))]
    alpaca = [
        {"instruction": "a", "output": "b"},
        {"instruction": "a", "input": "", "output": "b"},
        {"instruction": "a", "input": "c", "output": "b", "system": "s"},
    ]
    assert [each.messages for each in chats(write("d.jsonl", alpaca))] == [
        chat("a", "b"),
        chat("a", "b"),
        chat("a\n\nc", "b", system="s"),
    ]


def test_tools_go_with_a_chat(write: Write) -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    for tools in ([tool], json.dumps([tool])):
        assert chats(write("a.jsonl", [{"messages": chat("a", "b"), "tools": tools}]))[0].tools == [tool]


def test_parquet_s_nulls_are_no_values(tmp_path: Any) -> None:
    import datasets

    def called(**arguments: Any) -> list[dict[str, Any]]:
        calls = [{"type": "function", "function": {"name": "f", "arguments": arguments}}]
        return [*chat("a"), {"role": "assistant", "content": None, "tool_calls": calls}]

    schemas = ({"a": {"type": "string"}}, {"b": {"type": "number"}})
    tools = [[{"name": "f", "parameters": {"properties": each}}] for each in schemas]
    rows = [{"messages": called(a="x"), "tools": tools[0]}, {"messages": called(b=1.5), "tools": tools[1]}]
    datasets.Dataset.from_list(rows).to_parquet(tmp_path / "a.parquet")
    first, second = chats(tmp_path / "a.parquet")
    assert first.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": "x"}
    assert second.messages[1]["tool_calls"][0]["function"]["arguments"] == {"b": 1.5}
    assert (first.tools or [])[0]["function"]["parameters"] == {"properties": schemas[0]}
    assert "tool_calls" not in first.messages[0]


def test_nulls_that_a_file_spells_are_values(write: Write) -> None:
    call = {"function": {"name": "f", "arguments": {"a": None}}}
    record = {"messages": [*chat("a"), {"role": "assistant", "tool_calls": [call], "name": None}]}
    (found,) = chats(write("a.jsonl", [record]))
    assert found.messages[1]["tool_calls"][0]["function"]["arguments"] == {"a": None}
    assert "name" not in found.messages[1]


@pytest.fixture
def chatml(tokenizer):
    tokenizer.chat_template = CHATML
    return tokenizer


def test_all_bad_records_are_named_at_once(chatml, write: Write, tmp_path: Any) -> None:
    good, path = {"messages": chat("a", "b")}, tmp_path / "bad.jsonl"
    lines = [good, {"messages": []}, good, {"message": 1}, {"messages": [{"from": "bing", "value": "a"}]}, good]
    path.write_text("".join(f"{json.dumps(line)}\n" for line in lines) + "{\n")
    with pytest.raises(SetBlockError) as raised:
        rows_of(DataSection(source=str(path)), chatml, LIMITS)
    message = str(raised.value)
    assert message.startswith(f"4 of 7 records can't be used: {path}, line 2: messages must be a list of at least one")
    assert f"{path}, line 4: no column 'messages' among message; " in message
    assert f"{path}, line 5: from must be one of human, gpt, user, assistant, system, tool, not 'bing'; " in message
    assert f"{path}, line 7: not JSON (" in message
    assert "\n" not in message
    with pytest.raises(SetBlockError, match="4 of 7 records can't be used"):
        tokenise(DataSection(source=str(path)), chatml, tmp_path / "tokens", limits=LIMITS, processes=2)
    assert not list((tmp_path / "tokens").glob("*.arrow"))


def test_of_many_bad_records_the_first_ten_are_named(chatml, write: Write) -> None:
    path = write("bad.jsonl", [{"messages": chat("a", "b")}, *[{"messages": 1}] * 700])
    with pytest.raises(SetBlockError, match=r"^700 of 701 records .* line 11: [^;]*; and 690 more$") as raised:
        rows_of(DataSection(source=str(path)), chatml, LIMITS)
    assert str(raised.value).count("line ") == 10


def test_a_file_that_begins_with_a_bad_line(chatml, write: Write, tmp_path: Any) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(f"{{\n{json.dumps({'messages': chat('a', 'b')})}\n")
    with pytest.raises(SetBlockError, match=r"^[^;]*bad.jsonl, line 1: not JSON"):
        rows_of(DataSection(source=str(path)), chatml, LIMITS)


def test_chats_without_an_assistant_are_reported(chatml, write: Write) -> None:
    path = write("a.jsonl", [{"messages": [{"role": "model", "content": "b"}, *chat("a")]}] * 3)
    with pytest.raises(SetBlockError, match=r"3 of 3 documents have nothing .* no message of role assistant"):
        rows_of(DataSection(source=str(path)), chatml, LIMITS)


def test_a_template_that_ends_with_text_is_reported(chatml, write: Write) -> None:
    chatml.chat_template = "{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}" + (
        "{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
    )
    with pytest.warns(SetBlockWarning, match="closes an answer with no special token"):
        rows_of(DataSection(source=str(write("a.jsonl", [{"messages": chat("a", "b")}]))), chatml, LIMITS)
