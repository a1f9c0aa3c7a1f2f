"""Write an answer as OpenAI's API does, whole or in pieces: one shape for chats, one for completions.

Knows finished answers and their tokens. Knows nothing of HTTP.
"""

import math
import secrets
from collections.abc import Callable
from itertools import accumulate
from typing import Any

from setblock.decoding.answer.generation import Generation, Reveal, TokenLogprobs
from setblock.decoding.answer.news import RowNews
from setblock.structure.calls import CallForm, CallReader

TokenText = Callable[[int], str]
_LEAST_LOGPROB = -9999.0  # JSON has no infinity


class CompletionShape:
    """Write the answers of `/v1/completions`. `ChatShape` has what is different in chats."""

    prefix = "cmpl"
    whole = piece = "text_completion"

    def text(self, index: int, text: str, *, final: bool = False) -> dict[str, Any]:
        """Return a choice with a piece of an answer; `final` if it is the last."""
        return _choice(index, text=text)

    def answer(self, index: int, generation: Generation) -> dict[str, Any]:
        """Return a choice with the whole text of an answer."""
        return _choice(index, text=generation.text)

    def logprobs(self, tokens: list[tuple[int, TokenLogprobs]], text_of: TokenText) -> dict[str, Any]:
        """Return the log-probabilities of the tokens of an answer."""
        texts = [text_of(token_id) for token_id, _ in tokens]
        return {
            "tokens": texts,
            "token_logprobs": [max(found.logprob, _LEAST_LOGPROB) for _, found in tokens],
            "top_logprobs": [
                {text_of(each): max(logprob, _LEAST_LOGPROB) for each, logprob in found.alternatives}
                for _, found in tokens
            ],
            "text_offset": list(accumulate(map(len, texts), initial=0))[:-1],
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return a choice that says that an answer begins, if there is one."""
        return None

    def finish_reason(self, index: int, generation: Generation) -> str:
        """Return why an answer ended, after its last piece."""
        return generation.finish_reason

    def end(self, index: int, generation: Generation, text_of: TokenText, *, with_tokens: bool) -> dict[str, Any]:
        """Return the fields of a choice that are known once its answer has ended."""
        told: dict[str, Any] = {"logprobs": None, "finish_reason": self.finish_reason(index, generation)}
        if generation.logprobs is not None:
            told["logprobs"] = self.logprobs(list(zip(generation.token_ids, generation.logprobs, strict=True)), text_of)
        if with_tokens:
            columns = zip(generation.token_ids, generation.revealed_by, generation.entropy, strict=True)
            told["tokens"] = [
                {"token_id": token_id, "text": text_of(token_id), "revealed_by": number, "entropy": _finite(entropy)}
                for token_id, number, entropy in columns
            ]
        return told


class ChatShape(CompletionShape):
    """Write the answers of `/v1/chat/completions`."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    piece = "chat.completion.chunk"

    def __init__(self, form: CallForm | None = None) -> None:
        """Write answers that call tools in this form, or none that does."""
        self._form = form
        self._no_text = "" if form is None else None
        self._readers: dict[int, CallReader] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        """See `CompletionShape`."""
        return _choice(index, delta={"role": "assistant", "content": self._no_text})

    def text(self, index: int, text: str, *, final: bool = False) -> dict[str, Any]:
        """See `CompletionShape`."""
        content, calls = self._read(index, text, final=final)
        found = {"content": content, "tool_calls": calls}
        return _choice(index, delta={name: each for name, each in found.items() if each})

    def answer(self, index: int, generation: Generation) -> dict[str, Any]:
        """See `CompletionShape`."""
        content, calls = self._read(index, generation.text, final=True)
        message: dict[str, Any] = {"role": "assistant", "content": content or self._no_text, "refusal": None}
        for call in calls:
            del call["index"]
        return _choice(index, message=message | ({"tool_calls": calls} if calls else {}))

    def logprobs(self, tokens: list[tuple[int, TokenLogprobs]], text_of: TokenText) -> dict[str, Any]:
        """See `CompletionShape`."""

        def entry(token_id: int, logprob: float) -> dict[str, Any]:
            text = text_of(token_id)
            encoded = None if "\ufffd" in text else list(text.encode())
            return {"token": text, "bytes": encoded, "logprob": max(logprob, _LEAST_LOGPROB)}

        content = [
            {**entry(token_id, found.logprob), "top_logprobs": [entry(*each) for each in found.alternatives]}
            for token_id, found in tokens
        ]
        return {"content": content, "refusal": None}

    def finish_reason(self, index: int, generation: Generation) -> str:
        """See `CompletionShape`. A call that was cut at the limit was not made."""
        made = index in self._readers and self._readers[index].calls > 0
        return "tool_calls" if made and generation.finish_reason == "stop" else generation.finish_reason

    def _read(self, index: int, text: str, *, final: bool) -> tuple[str, list[dict[str, Any]]]:
        """Return the text in a piece of an answer, and the parts of each call."""
        if self._form is None:
            return text, []
        pieces = self._readers.setdefault(index, CallReader(self._form)).read(text, final=final)
        calls: dict[int, dict[str, Any]] = {}
        for each in pieces:
            if each.kind == "name":
                calls[each.call] = {"index": each.call, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
                calls[each.call]["function"] = {"name": each.text, "arguments": ""}
            elif each.kind == "arguments":
                call = calls.setdefault(each.call, {"index": each.call, "function": {"arguments": ""}})
                call["function"]["arguments"] += each.text
        return "".join(each.text for each in pieces if each.kind == "text"), list(calls.values())


def pass_json(event: RowNews, text_of: TokenText) -> dict[str, Any]:
    """Return what one pass did."""

    def reveal(found: Reveal) -> dict[str, Any]:
        text, entropy = text_of(found.token_id), _finite(found.entropy)
        return {"index": found.index, "token_id": found.token_id, "text": text, "entropy": entropy}

    return {
        "number": event.number,
        "kind": event.kind,
        "revealed": [reveal(each) for each in event.revealed],
        "corrected": None if event.corrected is None else reveal(event.corrected),
    }


def _choice(index: int, **fields: Any) -> dict[str, Any]:
    return {"index": index, **fields, "logprobs": None, "finish_reason": None}


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
