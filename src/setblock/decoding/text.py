"""Text in and out: prompts become token ids, revealed tokens become a stream of text.

Knows tokenizers. A prompt's text is always plain text: where it holds a special token's name, the name is spelled out and
never becomes the token.
"""

import re
from collections.abc import Sequence

from transformers import PreTrainedTokenizerBase

from setblock.errors import SetBlockError

Message = dict[str, str]
Prompt = str | Sequence[Message]


def encode_prompt(tokenizer: PreTrainedTokenizerBase, prompt: Prompt, *, raw: bool = False) -> list[int]:
    """Token ids of a prompt.

    Args:
        prompt: a text, or chat messages with `role` and `content`. A text becomes a user message where the tokenizer has
            a chat template.
        raw: continue the text as it stands, without the chat template.

    Raises:
        SetBlockError: the prompt is empty, or has messages and the tokenizer no chat template.
    """
    if isinstance(prompt, str):
        if not prompt.strip():
            raise SetBlockError("prompt must not be empty")
        if raw or tokenizer.chat_template is None:
            return list(tokenizer(prompt, split_special_tokens=True).input_ids)
        prompt = [{"role": "user", "content": prompt}]
    if not prompt:
        raise SetBlockError("prompt must not be empty")
    if tokenizer.chat_template is None:
        raise SetBlockError("chat messages need a tokenizer with a chat template, and this one has none")
    return _encode_chat(tokenizer, prompt)


def _encode_chat(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> list[int]:
    if not any(_names_special_token(tokenizer, message["content"]) for message in messages):
        return list(_encode(tokenizer, _render(tokenizer, messages), plain=False))
    # Render the template around placeholders, so that what it writes and what the user wrote stay apart, wherever it puts
    # a message, and however often.
    rendered = _render(tokenizer, [{**m, "content": f"\ue000{index}\ue001"} for index, m in enumerate(messages)])
    ids: list[int] = []
    for part, piece in enumerate(re.split("\ue000(\\d+)\ue001", rendered)):
        is_content = part % 2 == 1
        ids += _encode(tokenizer, messages[int(piece)]["content"] if is_content else piece, plain=is_content)
    return ids


def _render(tokenizer: PreTrainedTokenizerBase, messages: Sequence[Message]) -> str:
    rendered = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    assert isinstance(rendered, str)
    return rendered


def _encode(tokenizer: PreTrainedTokenizerBase, text: str, *, plain: bool) -> list[int]:
    return list(tokenizer(text, add_special_tokens=False, split_special_tokens=plain).input_ids)


def _names_special_token(tokenizer: PreTrainedTokenizerBase, text: str) -> bool:
    return any(token.content in text for token in tokenizer.added_tokens_decoder.values() if token.special)


class TextStream:
    """Turns a growing sequence of token ids into pieces of text that are never taken back."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._emitted = ""

    def push(self, token_ids: Sequence[int], *, final: bool) -> str:
        """The text that all of `token_ids` add to what was given before. A character whose bytes have not all come is
        held back, unless nothing more will come (`final`)."""
        text = decode_tokens(self._tokenizer, token_ids)
        if not final:
            text = text.rstrip("\ufffd")
        if len(text) <= len(self._emitted):
            return ""
        piece, self._emitted = text[len(self._emitted) :], text
        return piece


def decode_tokens(tokenizer: PreTrainedTokenizerBase, token_ids: Sequence[int]) -> str:
    """Text of token ids, special tokens left out."""
    text = tokenizer.decode(list(token_ids), skip_special_tokens=True)
    assert isinstance(text, str)
    return text
