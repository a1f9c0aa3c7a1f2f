"""Encode prompts and decode tokens for many requests at once, by the model's tokenizer.

Knows tokenizers. Has its own copies of one: encoding changes a tokenizer's state while it lasts, and the engine reads from the
model's own at the same time.
"""

import asyncio
import copy
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache, partial
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.text import encode_prompt
from setblock.errors import SetBlockError
from setblock.server.http.errors import bad_request
from setblock.structure.calls import CallForm, call_form
from setblock.structure.compiled import grammars_of
from setblock.structure.kinds import Structure

Made = TypeVar("Made")
_COMPILE_SECONDS = 1.0  # the largest that are usual take a tenth of it


class Codec:
    """Encode in a separate thread, one prompt at a time, so that a long one delays no stream."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._encoder, self._decoder = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
        self._tokenizer = tokenizer  # whose grammars the engine asks for
        self._call_form = cache(partial(call_form, self._encoder))
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        # Of one token, special ones included
        self.text: Callable[[int], str] = cache(lambda token_id: self._decoder.decode([token_id]))

    async def encode_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Return the token ids of a chat: messages, and the tools that may be called in it, as chat templates take them.
        Raise `ApiError` if it is no chat, or the chat template refuses it."""
        return await self._in_thread(partial(encode_prompt, self._encoder, messages, tools=tools), param="messages")

    async def call_form(self) -> CallForm:
        """Return how the chat template writes calls of tools, or raise `ApiError` if it has no place for tools."""
        return await self._in_thread(self._call_form, param="tools")

    async def warm(self) -> None:
        """Read the vocabulary for grammars, where there is an engine of them. It takes a second in which nothing else runs."""
        with suppress(SetBlockError):  # reported to those who ask for a form
            await asyncio.to_thread(grammars_of, self._tokenizer)

    async def prepare(self, structure: Structure, *, param: str) -> None:
        """Compile a form in a thread, for the engine to find it. Raise `ApiError` if it is not valid, or too complex."""
        try:
            async with asyncio.timeout(_COMPILE_SECONDS):
                await asyncio.to_thread(lambda: grammars_of(self._tokenizer).matcher(structure))
        except TimeoutError as error:
            told = f"{structure.word} is too complex: its grammar takes more than {_COMPILE_SECONDS:g} s to compile"
            raise bad_request(told, param=param, code="invalid_structure") from error
        except SetBlockError as error:
            raise bad_request(str(error), param=param, code="invalid_structure") from error

    async def encode_text(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the token ids of a text to continue, or ids as they are. Raise `ApiError` if it is empty or no Unicode."""
        return await self._in_thread(lambda: encode_prompt(self._encoder, prompt, raw=True), param="prompt")

    def close(self) -> None:
        """End its thread."""
        self._thread.shutdown(cancel_futures=True)

    async def _in_thread(self, work: Callable[[], Made], *, param: str) -> Made:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except SetBlockError as error:
            raise bad_request(str(error), param=param) from error
