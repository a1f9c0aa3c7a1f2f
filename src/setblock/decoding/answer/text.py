"""Prompts as token ids (`encode_prompt`), and revealed tokens as a stream of text (`AnswerText`).

A prompt's text is always plain text: the name of a special token in it is encoded as text, not as the token.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from transformers import PreTrainedTokenizerBase

from setblock.chat.messages import chat_of, check_text
from setblock.chat.tokens import encode_chat, encode_text
from setblock.decoding.answer.template_kwargs import check_template_kwargs
from setblock.decoding.constraints.constraint import TokenConstraint
from setblock.decoding.settings.setting import whole
from setblock.errors import SetBlockError, prefixed
from setblock.locks import lock_of, one_at_a_time

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


_REPLACEMENT = ("\ufffd", "\u00ef\u00bf\u00bd", "<0xEF><0xBF><0xBD>")
"""The spellings of the character U+FFFD in tokenizers of characters, of bytes, and of both. Half a character is decoded
to it, too."""

_MOST_OF_CHARACTER = 4  # tokens of a character at most: it has at most so many bytes


class AnswerText(TokenConstraint):
    """An answer's text, built token by token: append-only, whole characters only, cut before a stop string.

    Where it stops doesn't depend on how many tokens come at once.
    """

    def __init__(
        self, tokenizer: PreTrainedTokenizerBase, *, stop: Sequence[str] = (), min_new_tokens: int = 0
    ) -> None:
        """`stop`: stop strings, which are ignored in the first `min_new_tokens` tokens."""
        self.text = ""
        self._tokenizer, self._stop, self._min_new_tokens = tokenizer, tuple(stop), min_new_tokens
        self.is_lazy = not self._stop
        self._token_ids: list[int] = []
        # How many tokens are in `text`, and the first token of the window in which the next ones are decoded
        self._read = self._window = 0
        self._given = 0

    def read(self, token_ids: Sequence[int], *, final: bool = False) -> None:
        """Read more tokens, up to a stop string. `final`: no more will come, so half a character is decoded, too."""
        # The token that completes a stop string ends the answer. Without them all tokens are decoded together: faster
        for part in [[each] for each in token_ids] if self._stop else filter(None, [token_ids]):
            if self.stop_length is not None:
                return
            self._token_ids += part
            self._decode(final=False)
        if final and self.stop_length is None:
            self._decode(final=True)

    def take(self, *, final: bool = False) -> str:
        """Return the text that became certain since the last call.

        Half a character and the possible beginning of a stop string are held back, unless nothing more will come
        (`final`).
        """
        self.read([], final=final)
        is_whole = final or self.stop_length is not None
        begun = (n for each in self._stop for n in range(1, len(each)) if self.text.endswith(each[:n]))
        certain = len(self.text) - (0 if is_whole else max(begun, default=0))
        piece = self.text[self._given : certain]
        self._given = max(certain, self._given)
        return piece

    def _decode(self, *, final: bool) -> None:
        # Some tokenizers write a token differently at the beginning of a text, so the last few are decoded again
        with lock_of(self._tokenizer):  # the tokenizer must not be switched while it decodes
            known = self._tokenizer.decode(self._token_ids[self._window : self._read], skip_special_tokens=True)
            count = len(self._token_ids)
            for end in range(count, max(self._read, count - _MOST_OF_CHARACTER), -1):
                text = self._tokenizer.decode(self._token_ids[self._window : end], skip_special_tokens=True)
                if final or not text.endswith("\ufffd") or self._is_replacement(end):
                    break
            else:  # half a character
                return
        if len(text) <= len(known):
            return
        already = len(self.text)
        self.text += text[len(known) :]
        self._window, self._read = self._read, end
        if len(self._token_ids) <= self._min_new_tokens:
            return
        found = [self.text.find(each, max(0, already - len(each) + 1)) for each in self._stop]
        if any(place >= 0 for place in found):
            self.text = self.text[: min(place for place in found if place >= 0)]
            self.stop_length = len(self._token_ids)

    def _is_replacement(self, end: int) -> bool:
        tokens = self._tokenizer.convert_ids_to_tokens(self._token_ids[max(0, end - _MOST_OF_CHARACTER) : end])
        return "".join(tokens).endswith(_REPLACEMENT)
