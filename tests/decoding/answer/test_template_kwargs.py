"""What a chat template is rendered with besides the chat."""

import copy
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock import DecodingSettings, SetBlockError, generate, generate_batch, stream
from setblock.decoding.answer.prompt import encode_prompt

TEMPLATE = (
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}a:"
    "{% if enable_thinking is defined and not enable_thinking %} no thoughts{% endif %}{{ style or '' }}"
)
OFF = {"enable_thinking": False}


@pytest.fixture
def thinker(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    tokenizer.chat_template = TEMPLATE
    return tokenizer


@pytest.mark.parametrize("prompt", ["Hm?", [{"role": "user", "content": "Hm?"}]])
def test_the_template_gets_them(prompt: Any, thinker: PreTrainedTokenizerBase) -> None:
    for kwargs, end in (
        (None, "a:"),
        ({"enable_thinking": True}, "a:"),
        (OFF, "a: no thoughts"),
        ({"style": "x"}, "a:x"),
    ):
        ids = encode_prompt(thinker, prompt, chat_template_kwargs=kwargs)
        assert thinker.decode(ids) == f"user: Hm?\n{end}"


def test_a_text_that_names_a_special_token_stays_text_with_them(thinker: PreTrainedTokenizerBase) -> None:
    ids = encode_prompt(thinker, "a <|endoftext|>", chat_template_kwargs=OFF)
    assert thinker.eos_token_id not in ids
    assert thinker.decode(ids) == "user: a <|endoftext|>\na: no thoughts"


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"enable_thinkin": False}, "chat template has no 'enable_thinkin', did you mean 'enable_thinking'"),
        ({"messages": []}, "must not have 'messages', which the chat itself decides"),
        ({"tokenize": True}, "must not have 'tokenize'"),
        ({"chat_template": "x"}, "must not have 'chat_template'"),
        ({"tools": []}, "must not have 'tools'"),
        ({"eos_token": "x"}, "must not have 'eos_token'"),
        ({"style": "<|endoftext|>"}, "must not name special tokens of the model, such as <|endoftext|>"),
        ({"style": {"a": ["<|endoftext|>"]}}, "must not name special tokens"),
        ({"style": "\ud800"}, "must be made of what JSON has, in Unicode"),
        ({"style": {1, 2}}, "must be made of what JSON has"),
    ],
)
def test_what_can_not_be_given(kwargs: dict[str, Any], said: str, thinker: PreTrainedTokenizerBase) -> None:
    with pytest.raises(SetBlockError, match="chat_template_kwargs") as error:
        encode_prompt(thinker, "Hm?", chat_template_kwargs=kwargs)
    assert said in str(error.value)


def test_a_prompt_without_a_template_has_none(thinker: PreTrainedTokenizerBase) -> None:
    with pytest.raises(SetBlockError, match="raw leaves out the chat template"):
        encode_prompt(thinker, "Hm?", raw=True, chat_template_kwargs=OFF)
    with pytest.raises(SetBlockError, match="token ids have no chat template"):
        encode_prompt(thinker, [5, 6], chat_template_kwargs=OFF)
    thinker.chat_template = None
    with pytest.raises(SetBlockError, match="need a tokenizer with a chat template"):
        encode_prompt(thinker, "Hm?", chat_template_kwargs=OFF)


def test_generate_takes_them(thinker: PreTrainedTokenizerBase) -> None:
    model = tiny_sbd("llama", copy.deepcopy(thinker), mode="shifted")
    settings = DecodingSettings(method="ntp", max_new_tokens=8)
    expected = generate(model, encode_prompt(thinker, "Hm?", chat_template_kwargs=OFF), settings=settings)
    found = [
        generate(model, "Hm?", settings=settings, chat_template_kwargs=OFF),
        *generate_batch(model, ["Hm?"], settings=settings, chat_template_kwargs=OFF),
        [*stream(model, "Hm?", settings=settings, chat_template_kwargs=OFF)][-1].generation,
    ]
    assert [each and each.token_ids for each in found] == [expected.token_ids] * 3
    assert generate(model, "Hm?", settings=settings).token_ids != expected.token_ids
