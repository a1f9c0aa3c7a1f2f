"""What Python code may hand over: the right answer, or one line that names the value and what is valid."""

from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock import DecodingSettings, EntropyBounded, SetBlockError, generate, generate_batch, load
from setblock.decoding.answer.prompt import encode_prompt
from setblock.errors import ParameterError
from setblock.model.sbd_model import SBDModel

TEMPLATE = "{% for message in messages %}{{ message['role'] }}: {{ message['content'] }}\n{% endfor %}"
SHORT = DecodingSettings(method="sbd", max_new_tokens=4)


@pytest.fixture
def sbd(tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    tokenizer.chat_template = TEMPLATE
    return tiny_sbd("llama", tokenizer)


def test_parts_of_type_text_are_their_text(sbd: SBDModel) -> None:
    parts = [{"type": "text", "text": "Tom has "}, {"type": "text", "text": "12 apples"}]
    whole, in_parts = (
        generate(sbd, [{"role": "user", "content": content}], settings=SHORT)
        for content in ("Tom has 12 apples", parts)
    )
    assert in_parts.token_ids == whole.token_ids


@pytest.mark.parametrize("kind", [list, tuple, torch.tensor], ids=["list", "tuple", "tensor"])
def test_token_ids_are_a_prompt(kind: Any, sbd: SBDModel) -> None:
    ids = encode_prompt(sbd.tokenizer, "Tom has 12 apples", raw=True)
    assert encode_prompt(sbd.tokenizer, kind(ids)) == ids
    as_text, as_ids = generate_batch(sbd, ["Tom has 12 apples", kind(ids)], settings=SHORT, raw=True)
    assert as_ids.token_ids == as_text.token_ids


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ([{"role": "user"}], "message 1 has no content: give it a text"),
        ([{"role": "user", "content": None}], "message 1 has no content"),
        ([{"role": "user", "content": 5}], "content of message 1 must be a text, or parts"),
        ([{"role": "user", "content": [{"type": "image_url", "image_url": "x"}]}], "parts of type 'text', not"),
        ([{"content": "Tom"}], "message 1 must be an object with a role, such as user or assistant"),
        (
            [{"role": "user", "content": "Tom"}, "Tom"],
            "message 2 must be an object with a role",
        ),
        ("Tom \ud83d", r"prompt must be valid Unicode, and has '\ud83d' at 4"),
        ([{"role": "user", "content": "\udc00"}], r"content of message 1 must be valid Unicode"),
        ([], "prompt must not be empty"),
        (None, "prompt must be a text, token ids or chat messages, not None"),
        (5, "prompt must be a text, token ids or chat messages, not 5"),
        (["Tom"], "prompt must be one prompt, not a list of texts: generate_batch answers"),
        ([3, 1.5], "token ids of prompt must be a whole number, not 1.5"),
        ([3, 300_000], "token ids of the prompt must be between 0 and "),
        ([3, -1], "token ids of the prompt must be between 0 and "),
    ],
)
def test_what_is_no_prompt_is_reported(prompt: Any, said: str, sbd: SBDModel) -> None:
    for call in (lambda: generate(sbd, prompt, settings=SHORT), lambda: generate_batch(sbd, [prompt], settings=SHORT)):
        with pytest.raises(SetBlockError) as refusal:
            call()
        assert said in str(refusal.value)
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        (
            {"sampler": "entropy-bounded"},
            "sampler must be a sampler such as EntropyPrefix(0.1), not 'entropy-bounded'",
        ),
        ({"sampler": EntropyBounded}, "sampler must be a sampler such as EntropyPrefix(0.1), not <class"),
        ({"logit_bias": [5]}, "logit_bias must be a mapping of token ids to numbers, not [5]"),
        ({"stop": 5}, "stop must be a text or a list of texts, not 5"),
        ({"banned_tokens": 5}, "banned_tokens must be a list of token ids, not 5"),
        ({"banned_tokens": "5"}, "banned_tokens must be a list of token ids, not '5'"),
        ({"block_size": 10**20}, f"block_size must be at most {2**31 - 1}, not {10**20}"),
        ({"min_new_tokens": 10**20}, f"min_new_tokens must be at most {2**31 - 1}, not {10**20}"),
        ({"max_new_tokens": 10**20}, f"max_new_tokens must be at most {2**31 - 1}, not {10**20}"),
        ({"top_k": 10**20}, f"top_k must be at most {2**31 - 1}, not {10**20}"),
    ],
)
def test_settings_of_another_kind(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(ParameterError) as refusal:
        DecodingSettings(**fields)
    assert said in str(refusal.value)


@pytest.mark.parametrize("name", ["stop", "logit_bias", "banned_tokens", "stop_token_ids"])
def test_none_is_as_if_nothing_were_said(name: str) -> None:
    assert DecodingSettings(**{name: None}) == DecodingSettings()


def test_gamma_is_a_number() -> None:
    with pytest.raises(ParameterError, match="gamma must be a number, not 'x'"):
        EntropyBounded(gamma="x")  # type: ignore[arg-type]


def test_a_quantization_that_there_is_not() -> None:
    with pytest.raises(SetBlockError, match="quantization must be one of int8, nf4, not 'foo'"):
        load(quantization="foo")  # type: ignore[arg-type]


@pytest.mark.parametrize("path", ["", " "])
def test_an_empty_path_is_not_the_bundled_model(path: str) -> None:
    with pytest.raises(SetBlockError, match=r"model must be a folder, a hub id, a GGUF file or a name, not ' ?'"):
        load(path)


@pytest.mark.parametrize("block_size", [200_000, 2**31 - 1])
def test_a_block_beyond_the_room_that_is_left_is_as_large_as_that(block_size: int, sbd: SBDModel) -> None:
    settings = {"max_new_tokens": 5, "sampler": EntropyBounded(1.0), "drafts": "fixed"}  # passes depend on no clock
    fitting, beyond = (
        generate(sbd, "Tom", settings=DecodingSettings(block_size=size, **settings)) for size in (8, block_size)
    )
    assert (beyond.token_ids, beyond.passes) == (fitting.token_ids, fitting.passes)
