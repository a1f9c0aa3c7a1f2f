"""Encode prompts and decode tokens for many requests at once, by the model's tokenizer.

Knows tokenizers. Has its own copies of one: encoding changes a tokenizer's state while it lasts, and the engine reads from the
model's own at the same time.
"""

import asyncio
import copy
import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.template_kwargs import check_template_kwargs
from setblock.decoding.answer.text import encode_prompt
from setblock.errors import SetBlockError
from setblock.server.api.token_texts import TokenTexts
from setblock.server.api.tool_calls import AnswerReader
from setblock.server.http.errors import bad_request
from setblock.structure.calls import CallForm, Calls, call_form
from setblock.structure.compiled import grammars_of
from setblock.structure.kinds import Structure

Made = TypeVar("Made")
_FORMS = 16  # of a template, by what it is rendered with
_COMPILE_SECONDS = 1.0  # the largest that are usual take a tenth of it


class Codec:
    """Encode in a separate thread, one prompt at a time, so that a long one delays no stream."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, ends: Sequence[int] = ()) -> None:
        """Take a tokenizer, and the ids of the tokens that end the model's answers."""
        self._encoder, self._decoder = copy.deepcopy(tokenizer), copy.deepcopy(tokenizer)
        self._tokenizer = tokenizer  # whose grammars the engine asks for
        self._ends = ends
        self._call_form = lru_cache(_FORMS)(self._found_form)  # by what a chat template is rendered with, as JSON
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="tokenizer")
        self.texts = TokenTexts(self._decoder)

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a chat: messages, and the tools that may be called in it, as chat templates take them, and
        what else the template is rendered with. Raise `ApiError` if the chat template refuses it, or it is no Unicode."""
        try:
            json.dumps([*messages, tools], ensure_ascii=False).encode()
        except UnicodeEncodeError as error:  # JSON can spell halves of characters, and no tokenizer takes them
            raise bad_request("messages must be Unicode, without lone surrogates", param="messages") from error
        given = partial(encode_prompt, self._encoder, messages, tools=tools, chat_template_kwargs=chat_template_kwargs)
        return await self._in_thread(given, param="messages")

    async def check_template_kwargs(self, chat_template_kwargs: Mapping[str, Any]) -> None:
        """Raise `ApiError` if the chat template can't be rendered with them."""
        checked = partial(check_template_kwargs, self._encoder, chat_template_kwargs)
        await self._in_thread(checked, param="chat_template_kwargs")

    async def call_form(self, chat_template_kwargs: Mapping[str, Any]) -> CallForm:
        """Return how the chat template writes calls of tools, or raise `ApiError` if it has no place for tools."""
        return await self._in_thread(partial(self._call_form, json.dumps(chat_template_kwargs)), param="tools")

    def reader(self, calls: Calls | None, *, stop: Sequence[str]) -> Callable[[], AnswerReader] | None:
        """Return what makes the readers of calls in answers, if there may be calls."""
        return None if calls is None else partial(AnswerReader, calls, self._decoder, stop=stop)

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

    def _found_form(self, chat_template_kwargs: str) -> CallForm:
        kwargs, special = json.loads(chat_template_kwargs), grammars_of(self._tokenizer).special
        return call_form(self._encoder, special, ends=self._ends, chat_template_kwargs=kwargs)

    async def _in_thread(self, work: Callable[[], Made], *, param: str) -> Made:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._thread, work)
        except SetBlockError as error:
            raise bad_request(str(error), param=param) from error
