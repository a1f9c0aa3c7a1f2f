"""Chats: the assistant's tokens carry loss, and no others, whatever the template."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from conftest import TEXTS
from data.conftest import CHATML, MARKED, chat
from setblock.chat.messages import chat_of
from setblock.data.texts.chat import Piece, chat_pieces
from setblock.data.tokenizer import QUESTION_ANSWER_TEMPLATE, train_tokenizer
from setblock.errors import SetBlockError

TOKENIZER = train_tokenizer(TEXTS, vocab_size=300)


def with_template(template: str | None) -> PreTrainedTokenizerBase:
    TOKENIZER.chat_template = template
    return TOKENIZER


def pieces_of(tokenizer: PreTrainedTokenizerBase, messages: Any, tools: Any = None, **options: Any) -> list[Piece]:
    pieces = chat_pieces(tokenizer, chat_of(messages, tools), **options)
    return [("".join(text for text, _ in segments), carries_loss) for segments, carries_loss in pieces]


def learned(template: str, messages: Any, tools: Any = None, **options: Any) -> list[str]:
    return [text for text, carries in pieces_of(with_template(template), messages, tools, **options) if carries]


contents = st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=9), min_size=2, max_size=6)


@pytest.mark.parametrize("template", [CHATML, MARKED, QUESTION_ANSWER_TEMPLATE])
@given(contents)
def test_pieces_are_the_whole_text_and_answers_carry_loss(template: str, texts: list[str]) -> None:
    messages = chat(*texts)
    pieces = pieces_of(with_template(template), messages)
    assert "".join(text for text, _ in pieces) == TOKENIZER.apply_chat_template(messages, tokenize=False)
    answers = [message["content"] for message in messages if message["role"] == "assistant"]
    carrying = [text for text, carries_loss in pieces if carries_loss]
    assert len(carrying) == len(answers)
    for text, answer in zip(carrying, answers, strict=True):
        assert text.removesuffix("\n").removesuffix("<|endoftext|>").removeprefix(" ") in (answer, answer[1:])


def test_an_answer_ends_with_its_end_of_text_token():
    assert learned(CHATML, chat("Hi", "Hello", "And?", "Yes\nno")) == ["Hello<|endoftext|>", "Yes\nno<|endoftext|>"]
    # Marks are believed: what they enclose is what carries loss.
    assert learned(MARKED, chat("Hi", "Hello")) == ["Hello<|endoftext|>\n"]


def test_without_an_end_of_text_token_an_answer_is_the_whole_turn():
    template = CHATML.replace("+ eos_token + '\n'", "+ '\n'")
    assert learned(template, chat("Hi", "Hello", "And?", "Yes")) == ["Hello\n", "Yes\n"]


def test_marks_say_what_the_library_says():
    messages = chat("What is 3 * 4?", "It is 12.", "And 4 * 4?", "16.", system="Be brief.")
    tokenizer = with_template(MARKED)
    library = tokenizer.apply_chat_template(
        messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True
    )["assistant_masks"]
    ours = [
        carries_loss
        for text, carries_loss in pieces_of(tokenizer, messages)
        for _ in tokenizer(text, add_special_tokens=False).input_ids
    ]
    assert ours == [bool(flag) for flag in library]


def test_loss_on_all():
    assert [flag for _, flag in pieces_of(with_template(CHATML), chat("a", "b"), loss_on_all=True)] == [True]


def test_tools_reach_the_template():
    template = "{% if tools %}{{ 'tools: ' + tools[0]['function']['name'] + '\n' }}{% endif %}" + CHATML
    tools = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
    assert pieces_of(with_template(template), chat("a", "b"), tools)[0][0].startswith("tools: add\n")
    assert not pieces_of(with_template(template), chat("a", "b"))[0][0].startswith("tools")


LAST_DIFFERS = (  # as templates do that leave out the reasoning of all answers but the last
    "{% for message in messages %}{{ message['role'] + ':' + ('thinking ' if loop.last else '') + message['content'] + '\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ 'assistant:' }}{% endif %}"
)


def test_a_template_that_rewrites_earlier_answers_is_refused_with_the_reason():
    assert learned(LAST_DIFFERS.replace("'thinking '", "''"), chat("a", "b", "c", "d")) == ["b\n", "d\n"]
    with pytest.raises(SetBlockError, match=r"writes .*message 2 differently when more messages follow.*generation"):
        learned(LAST_DIFFERS, chat("a", "b", "c", "d"))


def test_a_template_that_refuses_messages_is_one_line():
    template = "{% if messages[0]['role'] != 'user' %}{{ raise_exception('user first') }}{% endif %}" + CHATML
    with pytest.raises(SetBlockError, match="the chat template refuses the messages: user first"):
        learned(template, chat("a", "b", system="s"))
    with pytest.raises(SetBlockError, match="the chat template refuses the messages: can only concatenate"):
        learned(CHATML.replace("message['content']", "1"), chat("a", "b"))


def test_no_template():
    with pytest.raises(SetBlockError, match="messages need a chat template, and the tokenizer has none: name a Jinja"):
        pieces_of(with_template(None), chat("a", "b"))


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "must be a list of at least one message"),
        ("text", "must be a list of at least one message"),
        ([{"from": "human", "value": "a"}], "message 1 must be an object with a role"),
        ([{"role": "user"}], "message 1 has no content"),
    ],
)
def test_what_is_no_list_of_messages(messages, said):
    with pytest.raises(SetBlockError, match=said):
        pieces_of(with_template(CHATML), messages)


def call(name: str = "add", **arguments: Any) -> dict[str, Any]:
    called = {"type": "function", "function": {"name": name, "arguments": arguments}}
    return {"role": "assistant", "content": None, "tool_calls": [called]}


TOOLS = [{"type": "function", "function": {"name": "add", "description": "", "parameters": {}}}]
LISTED = "{% if tools %}{{ tools | tojson }}{% endif %}"
CALLS = CHATML.replace(
    "message['content']", "(message['content'] ~ (message.tool_calls | tojson if message.tool_calls else ''))"
)


def test_answers_of_weight_0_carry_no_loss() -> None:
    messages = chat("a", "b", "c", "d", "e", "f")
    messages[3] |= {"weight": 0}
    plain = chat("a", "b", "c", "d", "e", "f")
    for template in (CHATML, MARKED):
        assert len(learned(template, messages)) == 2
        assert not any(text.startswith("d") for text in learned(template, messages))
        assert "".join(text for text, _ in pieces_of(with_template(template), messages)) == "".join(
            text for text, _ in pieces_of(with_template(template), plain)
        )
    (unlearned,) = (text for text, carries in pieces_of(TOKENIZER, messages, loss_on_all=True) if not carries)
    assert unlearned.startswith("d")
    once = MARKED.replace("{% generation %}", "{% if loop.last %}{% generation %}").replace(
        "{% endgeneration %}", "{% endgeneration %}{% else %}{{ message['content'] + eos_token + '\n' }}{% endif %}"
    )
    with pytest.raises(SetBlockError, match="marks 1 answers of 3"):
        learned(once, messages)


@pytest.mark.parametrize("arguments", [{"a": 1}, '{"a": 1}'])
def test_calls_are_learned_as_objects(arguments: Any) -> None:
    requested = [*chat("a"), call()]
    requested[1]["tool_calls"][0]["function"]["arguments"] = arguments
    (answer,) = learned(CALLS, requested, TOOLS)
    assert '"arguments": {"a": 1}' in answer


@pytest.mark.parametrize(
    ("template", "messages", "tools", "said"),
    [
        (CHATML, [*chat("a"), call(a=1)], None, "the call of 'add' of message 2"),
        (LISTED + CHATML, [*chat("a"), call()], TOOLS, "the call of 'add' of message 2"),
        (CHATML, chat("a", "b"), TOOLS, "the tool 'add'"),
        (QUESTION_ANSWER_TEMPLATE, chat("a", "b", system="Be brief."), None, r"the content of message 1 \(system\)"),
        (
            CHATML.replace("message['content']", "(message['content'].split('</think>') | last)"),
            chat("a", "<think>Hm.</think>b"),
            None,
            "the reasoning of message 2 out of the answer",
        ),
    ],
)
@pytest.mark.parametrize("loss_on_all", [False, True])
def test_what_a_template_leaves_out_is_refused(
    template: str, messages: Any, tools: Any, said: str, loss_on_all: bool
) -> None:
    with pytest.raises(SetBlockError, match=f"the chat template leaves (out )?{said}"):
        learned(template, messages, tools, loss_on_all=loss_on_all)


def test_parts_and_names_of_special_tokens_are_what_decoding_reads() -> None:
    """The same prompt, whatever field spells a special token."""
    from setblock.chat.tokens import encode_chat, encode_segments

    tokenizer = with_template(CALLS)
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a<|endoftext|>"}, {"type": "text", "text": "b"}]},
        call("<|endoftext|>", a="<|reserved_special_token_1|>"),
        {"role": "tool", "content": "c"},
        {"role": "assistant", "content": "d<|endoftext|>"},
    ]
    pieces = chat_pieces(tokenizer, chat_of(messages), apart=True)
    ids = [encode_segments(tokenizer, segments, inside=place > 0) for place, (segments, _) in enumerate(pieces)]
    requested = encode_chat(tokenizer, messages[:1])
    assert ids[0] == requested
    assert sum(each.count(tokenizer.eos_token_id) for each in ids) == 4
    assert [tokenizer.decode(each) for each, (_, carries) in zip(ids, pieces, strict=True) if carries][1] == (
        "d<|endoftext|><|endoftext|>"
    )
