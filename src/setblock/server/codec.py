"""Encode prompts and decode tokens for many requests at once, by the model's tokenizer.

Knows tokenizers. Has its own copies of one: encoding changes a tokenizer's state while it lasts, and the engine reads from the
model's own at the same time.
"""

import asyncio
import copy
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.text import encode_prompt
from setblock.errors import SetBlockError
from setblock.server.http.errors import bad_request
from setblock.structure.calls import CallForm, call_form
from setblock.structure.compiled import Compiled, grammars_of
from setblock.structure.kinds import JsonObject, Structure

Made = TypeVar("Made")
_LONG = 32 * 1024  # characters; half a million take a second


class _Encoder:
    """Hold a copy of a tokenizer, and the thread that has it to itself."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[..., Made], *arguments: Any, **named: Any) -> Made:
        """Return the result of a function that takes a tokenizer and then these arguments."""
        call = partial(work, self.tokenizer, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self.thread, call)


class Codec:
    """Encode in separate threads, one for long prompts and one for the others, so that a long one delays neither streams nor
    short prompts. Forms are compiled in a thread of their own, too."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._short, self._long = _Encoder(tokenizer, "tokenizer"), _Encoder(tokenizer, "long-prompts")
        self._decoder = copy.deepcopy(tokenizer)
        self._tokenizer = tokenizer  # whose grammars the engine asks for
        self._forms = ThreadPoolExecutor(1, thread_name_prefix="forms")
        self._call_form = cache(call_form)
        # Of one token, special ones included
        self.text: Callable[[int], str] = cache(lambda token_id: self._decoder.decode([token_id]))

    async def encode_chat(self, messages: list[dict[str, Any]], tools: list[dict[str, Any]] | None = None) -> list[int]:
        """Return the token ids of a chat: messages, and the tools that may be called in it, as chat templates take them.
        Raise `ApiError` if the chat template refuses it, or it is no Unicode."""
        try:
            text = json.dumps([*messages, tools], ensure_ascii=False)
            text.encode()
        except UnicodeEncodeError as error:  # JSON can spell halves of characters, and no tokenizer takes them
            raise bad_request("messages must be Unicode, without lone surrogates", param="messages") from error
        with _told("messages"):
            return await self._encoder_for(text).run(encode_prompt, messages, tools=tools)

    async def call_form(self) -> CallForm:
        """Return how the chat template writes calls of tools, or raise `ApiError` if it has no place for tools."""
        with _told("tools"):
            return await self._short.run(self._call_form)

    async def warm(self) -> None:
        """Read the vocabulary for grammars, where there is an engine of them, and start the process that tries forms."""
        with suppress(SetBlockError):  # reported to those who ask for a form
            await asyncio.to_thread(lambda: grammars_of(self._tokenizer).compiled(JsonObject()))

    async def prepare(self, structure: Structure, *, param: str) -> Compiled:
        """Compile a form in a thread. While the result is held, the engine finds it. Raise `ApiError` if the form is not valid,
        or too complex."""
        with _told(param, code="invalid_structure"):
            grammars = grammars_of(self._tokenizer)  # which `warm` has made
            if (known := grammars.known(structure)) is not None:  # and waits for no other's
                return known
            return await asyncio.get_running_loop().run_in_executor(self._forms, grammars.compiled, structure)

    async def encode_text(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the token ids of a text to continue, or ids as they are. Raise `ApiError` if it is empty or no Unicode."""
        with _told("prompt"):
            return await self._encoder_for(prompt).run(encode_prompt, prompt, raw=True)

    def close(self) -> None:
        """End its threads."""
        for thread in (self._short.thread, self._long.thread, self._forms):
            thread.shutdown(cancel_futures=True)

    def _encoder_for(self, prompt: str | Sequence[int]) -> _Encoder:
        return self._short if len(prompt) <= _LONG else self._long


@contextmanager
def _told(param: str, *, code: str | None = None) -> Iterator[None]:
    """Raise a client's mistake as `ApiError`, about this parameter."""
    try:
        yield
    except SetBlockError as error:
        raise bad_request(str(error), param=param, code=code) from error
