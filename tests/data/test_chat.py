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
