"""The tokenizer of many requests at once: encoding, decoding and compiled forms, in threads.

It has copies of the model's tokenizer: encoding changes a tokenizer's state while it lasts, and the engine reads from the
model's own at the same time.
"""

import asyncio
import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

from transformers import PreTrainedTokenizerBase

from setblock.decoding.answer.prompt import encode_prompt
from setblock.decoding.answer.template_kwargs import check_template_kwargs
from setblock.decoding.answer.tool_calls import AnswerReader
from setblock.errors import SetBlockError
from setblock.server.api.token_texts import TokenTexts
from setblock.server.http.errors import bad_request
from setblock.structure.call_form import CallForm, call_form
from setblock.structure.call_grammar import Calls
from setblock.structure.compiled import Compiled, grammars_of
from setblock.structure.kinds import JsonObject, Structure

OutputQueue = TypeVar("OutputQueue")
_FORMS = 16  # the forms of calls that are kept, one for each set of template variables
_LONG = 32 * 1024  # characters; half a million take a second


class _Encoder:
    """A copy of a tokenizer, and the only thread that uses it."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, name: str) -> None:
        self.tokenizer = copy.deepcopy(tokenizer)
        self.thread = ThreadPoolExecutor(1, thread_name_prefix=name)

    async def run(self, work: Callable[..., OutputQueue], *arguments: Any, **named: Any) -> OutputQueue:
        """Run `work` in the thread, with the tokenizer and these arguments, and return its result."""
        call = partial(work, self.tokenizer, *arguments, **named)
        return await asyncio.get_running_loop().run_in_executor(self.thread, call)


class TokenizerPool:
    """Tokenizers with threads of their own: one for long prompts and one for the others, so that a long prompt delays neither
    streams nor short prompts. A third thread compiles forms."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase, *, ends: Sequence[int] = ()) -> None:
        """Take a tokenizer, and the ids of the tokens that end the model's answers."""
        self._short, self._long = _Encoder(tokenizer, "tokenizer"), _Encoder(tokenizer, "long-prompts")
        self._decoder = copy.deepcopy(tokenizer)
        self._tokenizer = tokenizer  # the engine looks up compiled forms by this object
        self._ends = ends
        self._forms = ThreadPoolExecutor(1, thread_name_prefix="forms")
        self._call_form = lru_cache(_FORMS)(self._found_form)  # by the template's variables, as JSON
        self.texts = TokenTexts(self._decoder)

    async def encode_chat(
        self,
        messages: list[dict[str, Any]],
        tools: list[dict[str, Any]] | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return the token ids of a chat. Raise `ApiError` if it is no valid chat, or the chat template refuses it.

        Args:
            messages: as chat templates take them.
            tools: what may be called, as chat templates take it.
            chat_template_kwargs: further variables of the template.
        """
        with _as_api_error("messages"):
            encoder = self._encoder_for(json.dumps([*messages, tools], ensure_ascii=False))
            return await encoder.run(encode_prompt, messages, tools=tools, chat_template_kwargs=chat_template_kwargs)

    async def check_template_kwargs(self, chat_template_kwargs: Mapping[str, Any]) -> None:
        """Raise `ApiError` if the chat template can't be rendered with them."""
        with _as_api_error("chat_template_kwargs"):
            await self._short.run(check_template_kwargs, chat_template_kwargs)

    async def call_form(self, chat_template_kwargs: Mapping[str, Any]) -> CallForm:
        """Return the form in which the chat template writes calls of tools. Raise `ApiError` if it has no place for tools."""
        with _as_api_error("tools"):
            return await self._short.run(self._form_of, json.dumps(chat_template_kwargs))

    def reader(self, calls: Calls | None, *, stop: Sequence[str]) -> Callable[[], AnswerReader] | None:
        """Return a function that makes a reader of the calls in an answer, or None if answers can't make calls."""
        return None if calls is None else partial(AnswerReader, calls, self._decoder, stop=stop)

    async def warm(self) -> None:
        """Prepare grammars: read the vocabulary, and start the process that tries forms. Nothing happens without llguidance."""
        with suppress(SetBlockError):  # raised again for each request with a form
            await asyncio.to_thread(lambda: grammars_of(self._tokenizer).compiled(JsonObject()))

    async def prepare(self, structure: Structure, *, param: str) -> Compiled:
        """Compile a form in a thread. The engine finds the compiled form as long as the caller keeps the result. Raise
        `ApiError` if the form is not valid, or too complex."""
        with _as_api_error(param, code="invalid_structure"):
            grammars = grammars_of(self._tokenizer)  # made by `warm`
            if (known := grammars.known(structure)) is not None:  # does not wait for the compilation of others
                return known
            return await asyncio.get_running_loop().run_in_executor(self._forms, grammars.compiled, structure)

    async def encode_text(self, prompt: str | Sequence[int]) -> list[int]:
        """Return the token ids of a text to continue; ids are returned as they are. Raise `ApiError` if the prompt is empty or
        not valid Unicode."""
        with _as_api_error("prompt"):
            return await self._encoder_for(prompt).run(encode_prompt, prompt, raw=True)

    def close(self) -> None:
        """End the threads."""
        for thread in (self._short.thread, self._long.thread, self._forms):
            thread.shutdown(cancel_futures=True)

    def _form_of(self, _: PreTrainedTokenizerBase, chat_template_kwargs: str) -> CallForm:
        return self._call_form(chat_template_kwargs)

    def _found_form(self, chat_template_kwargs: str) -> CallForm:
        kwargs, special = json.loads(chat_template_kwargs), grammars_of(self._tokenizer).special
        return call_form(self._short.tokenizer, special, ends=self._ends, chat_template_kwargs=kwargs)

    def _encoder_for(self, prompt: str | Sequence[int]) -> _Encoder:
        return self._short if len(prompt) <= _LONG else self._long


@contextmanager
def _as_api_error(param: str, *, code: str | None = None) -> Iterator[None]:
    """While active, turn `SetBlockError` into `ApiError` about a parameter."""
    try:
        yield
    except SetBlockError as error:
        raise bad_request(str(error), param=param, code=code) from error
