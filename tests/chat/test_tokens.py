"""Prompts of chats: no field of a chat reaches a special token, and nothing that it says is lost without a word."""

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from setblock.chat.tokens import beginning, encode_chat, encode_text
from setblock.data.tokenizer import END_OF_TEXT, train_tokenizer
from setblock.errors import SetBlockError, SetBlockWarning
from structure.templates import BARE, HERMES, SHAPES, SPECIAL

RESERVED = "<|reserved_special_token_0|>"
BYTES = train_tokenizer(["Tom has 12 apples."], vocab_size=270)
ALL = (  # writes every field of a message
    "{% for tool in tools or [] %}{{ tool | tojson }}{{ eos_token }}{% endfor %}"
    "{% for m in messages %}{{ m.role }} {{ m.name }} {{ m.tool_call_id }}: {{ m.content }}"
    "{{ (m.tool_calls or []) | tojson }}{{ eos_token }}{% endfor %}"
)


def with_template(template: str, tokenizer: PreTrainedTokenizerBase = BYTES) -> PreTrainedTokenizerBase:
    tokenizer = copy.copy(tokenizer)
    tokenizer.chat_template = template
    return tokenizer


def call(name: str = "add", **arguments: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": None, "tool_calls": [{"name": name, "arguments": arguments}]}


USER = {"role": "user", "content": "a"}
FIELDS: dict[str, Callable[[str], tuple[list[dict[str, Any]], Any]]] = {
    "content": lambda text: ([{"role": "user", "content": text}], None),
    "part": lambda text: ([{"role": "user", "content": [{"type": "text", "text": text}]}], None),
    "name": lambda text: ([{**USER, "name": text}], None),
    "role": lambda text: ([{"role": text, "content": "a"}], None),
    "tool_call_id": lambda text: ([{"role": "tool", "content": "a", "tool_call_id": text}], None),
    "name of a call": lambda text: ([call(text)], None),
    "value": lambda text: ([call(a=[text])], None),
    "key": lambda text: ([call(**{text: 1})], None),
    "description": lambda text: ([USER], [{"name": "add", "description": text}]),
    "name of a tool": lambda text: ([USER], [{"name": text}]),
    "key of a schema": lambda text: ([USER], [{"name": "a", "parameters": {text: {}}}]),
}


@pytest.mark.parametrize("field", FIELDS)
@pytest.mark.parametrize(
    "spelled", [END_OF_TEXT, f"{RESERVED}x", f"<|{END_OF_TEXT}endoftext|>", f"a{RESERVED}{END_OF_TEXT}"]
)
@pytest.mark.parametrize("ascii_json", [False, True])
def test_no_field_reaches_a_special_token(field: str, spelled: str, ascii_json: bool) -> None:
    tokenizer = with_template(ALL.replace("tojson", "tojson(ensure_ascii=true)") if ascii_json else ALL)
    messages, tools = FIELDS[field](spelled)
    plain_messages, plain_tools = FIELDS[field]("something")
    ids, usual = (encode_chat(tokenizer, *each) for each in ((messages, tools), (plain_messages, plain_tools)))
    special = {*tokenizer.added_tokens_decoder}
    assert [each for each in ids if each in special] == [each for each in usual if each in special]
    assert tokenizer.decode(ids) == tokenizer.decode(usual).replace("something", spelled)


PARTS = ["\ue000", "\ue001", "\ue002", END_OF_TEXT, RESERVED, "7", "<|", "\\ue003", "\\uE004"]


@given(st.lists(st.sampled_from(PARTS), min_size=1).map("".join))
def test_nothing_in_a_chat_passes_for_a_mark(text: str) -> None:
    ids = encode_chat(with_template(ALL), [{"role": "user", "content": text, "name": text}])
    assert ids.count(BYTES.eos_token_id) == 1
    assert {*ids} & {*BYTES.added_tokens_decoder} == {BYTES.eos_token_id}
    assert BYTES.decode(ids).count(text) >= 2


def test_a_chat_of_all_private_characters_is_refused() -> None:
    every = "".join(map(chr, range(0xE000, 0xF900)))
    with pytest.raises(SetBlockError, match="the chat has all characters for private use"):
        encode_chat(with_template(ALL), [{"role": "user", "content": END_OF_TEXT + every}])
    assert BYTES.decode(encode_chat(with_template(ALL), [{"role": "user", "content": every}])).count(every) == 1


def test_a_template_may_cut_and_change_what_is_marked() -> None:
    tokenizer = with_template("{% for m in messages %}{{ m.content[1:-1] | trim }}{{ eos_token }}{% endfor %}")
    cut = [{"role": "system", "content": f"a{END_OF_TEXT}"}]  # the template cuts the last character off
    with pytest.warns(SetBlockWarning, match="leaves out the system message"):
        ids = encode_chat(tokenizer, cut)
    assert ids.count(tokenizer.eos_token_id) == 1


def test_a_role_can_t_be_made_a_special_token() -> None:
    tokenizer = with_template("{% for m in messages %}{{ '<|' + m.role + '|>' + m.content }}{% endfor %}")
    with pytest.raises(SetBlockError, match="role must not be a part of a special token's name, as 'endoftext' is"):
        encode_chat(tokenizer, [{"role": "endoftext", "content": "a"}])
    assert tokenizer.decode(encode_chat(tokenizer, [{"role": "critic", "content": "a"}])) == "<|critic|>a"


FORGETFUL = (
    "{% for m in messages %}{% if m.role in ['user', 'assistant'] %}{{ m.role + ': ' + m.content | trim + '\n' }}{% endif %}"
    "{% endfor %}"
)


@pytest.mark.parametrize(
    ("messages", "tools", "said"),
    [
        ([USER, {"role": "tool", "content": "sunny"}], None, r"the content of message 2 \(tool\)"),
        ([USER, call(city="Rome")], None, r"the call of 'add' of message 2 \(assistant\)"),
        ([USER], [{"name": "add"}], "the tool 'add'"),
    ],
)
def test_what_a_template_leaves_out_is_refused(messages: Any, tools: Any, said: str) -> None:
    with pytest.raises(SetBlockError, match=f"the chat template leaves out {said}"):
        encode_chat(with_template(FORGETFUL), messages, tools)


def test_a_call_is_not_taken_for_the_tool_of_its_name() -> None:
    """A template with a place for tools, and none for calls, writes the name all the same."""
    template = "{% for tool in tools or [] %}{{ tool | tojson }}{% endfor %}" + FORGETFUL
    with pytest.raises(SetBlockError, match="leaves out the call of 'add'"):
        encode_chat(with_template(template), [USER, call()], [{"name": "add"}])


def test_what_templates_change_on_purpose_is_no_loss() -> None:
    answer = {"role": "assistant", "content": "<think>\nHm.\n</think>\n\nYes  \nno."}
    as_json = "{{ message.content | tojson }}"
    for template, messages in (
        (FORGETFUL.replace("m.content | trim", "(m.content.split('</think>') | last)"), [USER, answer, USER]),
        (FORGETFUL, [{"role": "user", "content": " a \n"}]),
        (HERMES.replace("result: {{ message.content }}", as_json), [USER, {"role": "tool", "content": 'a "b"\n\\ é'}]),
        (HERMES, [USER, call(a='x "y"\n', b=[1, 2.5, True, None], c={"d": "é"})]),
        (SPECIAL, [USER, call(a="b")]),
        (BARE, [USER, call(a="b")]),
    ):
        assert encode_chat(with_template(template), messages)


def test_a_text_beside_a_call_may_be_left_out_of_a_prompt() -> None:
    """As some templates do: a client sends back what the model itself said before it called."""
    with pytest.warns(SetBlockWarning, match=r"leaves out the content of message 2 \(assistant\)"):
        assert encode_chat(with_template(BARE), [USER, {**call(a="b"), "content": "I'll see."}])


TEMPLATES = {name: template for name, (template, _) in SHAPES.items()}
STRING = HERMES.replace("{{ call.function.arguments | tojson }}", "{{ '' + call.function.arguments }}")


@pytest.mark.parametrize("arguments", [{"a": "é"}, '{"a": "é"}'])
@pytest.mark.parametrize("template", [*TEMPLATES, "string", "text"])
def test_arguments_are_written_once_whatever_the_template_takes(template: str, arguments: Any) -> None:
    takes = {**TEMPLATES, "string": STRING, "text": STRING.replace("'' + ", "")}[template]
    tokenizer = with_template(takes)
    called = {"role": "assistant", "content": "", "tool_calls": [{"name": "add", "arguments": arguments}]}
    written = tokenizer.decode(encode_chat(tokenizer, [USER, called]))
    assert written.count('{"a": "é"}') == written.count('"a"') == 1, "as an object, and not as a text of one"


def test_developer_is_system_where_the_template_does_not_know_it() -> None:
    developer = [{"role": "developer", "content": "Be brief."}, USER]
    tokenizer = with_template("{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}")
    with pytest.warns(SetBlockWarning, match="the chat template has no role developer"):
        assert tokenizer.decode(encode_chat(tokenizer, developer)).startswith("system: Be brief.")
    assert encode_chat(tokenizer, developer)  # said once
    knows = with_template("{# 'developer' #}{% for m in messages %}{{ m.role + ': ' + m.content + '\n' }}{% endfor %}")
    assert knows.decode(encode_chat(knows, developer)).startswith("developer: Be brief.")


def test_no_end_token_is_put_behind_a_prompt() -> None:
    from tokenizers.processors import TemplateProcessing

    tokenizer = copy.deepcopy(BYTES)
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single=f"{RESERVED} $A {END_OF_TEXT}", special_tokens=[(RESERVED, 1), (END_OF_TEXT, 0)]
    )
    assert beginning(tokenizer) == [1]
    assert encode_text(tokenizer, "Tom") == [1, *BYTES("Tom").input_ids]
