"""Prompts as token ids.

A prompt's text is always plain text: the name of a special token in it is encoded as text, not as the token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.chat.messages import chat_of, check_text
from setblock.chat.tokens import encode_chat, encode_text
from setblock.decoding.answer.template_kwargs import check_template_kwargs
from setblock.decoding.settings.setting import whole
from setblock.errors import SetBlockError, prefixed
from setblock.locks import one_at_a_time

Message = Mapping[str, Any]
Prompt = str | Sequence[int] | Sequence[Message]


@one_at_a_time()  # a tokenizer is switched between text of the template and text of the user
def encode_prompt(
    tokenizer: PreTrainedTokenizerBase,
    prompt: Prompt,
    *,
    raw: bool = False,
    tools: Sequence[Mapping[str, Any]] | None = None,
    chat_template_kwargs: Mapping[str, Any] | None = None,
) -> list[int]:
    """Return the token ids of a prompt. Raise `SetBlockError` if it is empty or malformed, or if it consists of
    messages and the tokenizer has no chat template, or one that leaves out a part of them.

    Args:
        prompt: a text, token ids, or chat messages as `chat_of` takes them. A text becomes a user message where the
            tokenizer has a chat template.
        raw: continue the text as it is, without the chat template.
        tools: functions that a chat may call, as OpenAI describes them.
        chat_template_kwargs: further variables of the chat template, such as `enable_thinking`.
    """
    if chat_template_kwargs:
        if raw:
            raise SetBlockError("raw leaves out the chat template: leave out chat_template_kwargs, too")
        check_template_kwargs(tokenizer, chat_template_kwargs, tools=tools)
    if isinstance(prompt, str):
        check_text(prompt, "prompt")
        if not prompt.strip():
            raise SetBlockError("prompt must not be empty")
        if raw or tokenizer.chat_template is None:
            return encode_text(tokenizer, prompt)
        return encode_chat(tokenizer, [{"role": "user", "content": prompt}], template_kwargs=chat_template_kwargs)
    parts: Any = prompt.tolist() if hasattr(prompt, "tolist") else prompt  # a tensor or an array of token ids
    if not isinstance(parts, list | tuple | range):
        raise SetBlockError(f"prompt must be a text, token ids or chat messages, not {prompt!r}")
    if not parts:
        raise SetBlockError("prompt must not be empty")
    if isinstance(parts[0], str):
        raise SetBlockError("prompt must be one prompt, not a list of texts: generate_batch answers a list of prompts")
    if not isinstance(parts[0], Mapping):
        if chat_template_kwargs:
            raise SetBlockError("token ids have no chat template: leave out chat_template_kwargs")
        return [whole("token ids of prompt", each) for each in parts]
    if tokenizer.chat_template is None:
        chat_of(parts, tools)
        raise SetBlockError("chat messages need a tokenizer with a chat template, and this one has none")
    return encode_chat(tokenizer, parts, tools, template_kwargs=chat_template_kwargs)


def messages_at(found: Any, where: str) -> list[dict[str, Any]]:
    """Return the chat messages `found` at a place of a file. Raise `SetBlockError` with `where` if it is no list of them."""
    if not isinstance(found, list) or not found:
        raise SetBlockError(f"{where}: messages must be a list of objects with role and content")
    with prefixed(where):
        return chat_of(found).messages
