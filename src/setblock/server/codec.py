"""Prompts in, token texts out: the model's tokenizer, for many requests at once.

Knows tokenizers. Has its own copies of one: encoding changes a tokenizer's state while it lasts, and the engine reads from the
model's own at the same time.
"""

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

from transformers import PreTrainedTokenizerBase

from setblock.decoding.text import Prompt, encode_prompt
from setblock.errors import SetBlockError
from setblock.server.errors import bad_request


class Codec:
    """A tokenizer that encodes in a thread of its own, one prompt at a time, so that a long one holds up nobody's stream."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, vocab_size: int) -> None:
        self._encoder, self._decoder = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self._vocab_size = vocab_size
        self._texts: dict[int, str] = {}

    async def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of a chat: (role, text) of each message, `developer` being another name of `system`.

        Raises:
            ApiError: the chat template refuses it, or it is no Unicode.
        """
        _check_text(*(text for _, text in messages), param="messages")
        chat = [{"role": "system" if role == "developer" else role, "content": text} for role, text in messages]
        return await self._encode(chat, param="messages", raw=False)

    async def encode_text(self, prompt: str | Sequence[int]) -> list[int]:
        """Token ids of a text that is to be continued as it stands; or the ids themselves, if there are such.

        Raises:
            ApiError: the prompt is empty or no Unicode, or an id is out of range.
        """
        if isinstance(prompt, str):
            _check_text(prompt, param="prompt")
            return await self._encode(prompt, param="prompt", raw=True)
        for token_id in prompt:
            if not 0 <= token_id < self._vocab_size:
                told = f"token ids of prompt must be between 0 and {self._vocab_size - 1}, not {token_id}"
                raise bad_request(told, param="prompt")
        if not prompt:
            raise bad_request("prompt must not be empty", param="prompt")
        return list(prompt)

    def text(self, token_id: int) -> str:
        """The text of one token, special ones included."""
        if token_id not in self._texts:
            text = self._decoder.decode([token_id])
            assert isinstance(text, str)
            self._texts[token_id] = text
        return self._texts[token_id]

    def close(self) -> None:
        """End its thread."""
        self._thread.shutdown(cancel_futures=True)

    async def _encode(self, prompt: Prompt, *, param: str, raw: bool) -> list[int]:
        try:
            return await self._in_thread(lambda: encode_prompt(self._encoder, prompt, raw=raw))
        except SetBlockError as error:
            raise bad_request(str(error), param=param) from error

    async def _in_thread(self, encode: Callable[[], list[int]]) -> list[int]:
        return await asyncio.get_running_loop().run_in_executor(self._thread, encode)


def _check_text(*texts: str, param: str) -> None:
    """JSON can spell halves of characters, which no tokenizer takes."""
    try:
        for text in texts:
            text.encode()
    except UnicodeEncodeError as error:
        raise bad_request(f"{param} must be Unicode, without lone surrogates", param=param) from error
