"""Answers in the format of OpenAI's API, whole or as chunks of a stream, for chats and for completions."""

import math
import secrets
from collections.abc import Callable, Sequence
from typing import Any

from setblock.decoding.answer.generation import Generation, Reveal, TokenLogprobs
from setblock.decoding.answer.row_output import RowOutput
from setblock.decoding.answer.tool_calls import AnswerReader
from setblock.engine.request import Progress
from setblock.server.api.token_texts import TokenTexts
from setblock.structure.call_reader import Piece

_LEAST_LOGPROB = -9999.0  # JSON has no infinity


class CompletionResponse:
    """The format of `/v1/completions`. `ChatResponse` overrides what is different in chats."""

    prefix = "cmpl"
    whole = piece = "text_completion"

    def nothing(self, index: int) -> dict[str, Any]:
        """Return a choice without text."""
        return _choice(index, text="")

    def piece_of(self, index: int, progress: Progress) -> dict[str, Any] | None:
        """Return a choice with what a pass added to an answer, or None if it added nothing."""
        return _choice(index, text=progress.text) if progress.text else None

    def answer(self, index: int, generation: Generation) -> dict[str, Any]:
        """Return a choice with the whole text of an answer."""
        return _choice(index, text=generation.text)

    def logprobs(self, generation: Generation, found: list[TokenLogprobs], texts: TokenTexts) -> dict[str, Any]:
        """Return the log-probabilities of an answer's tokens, `found`, in OpenAI's format."""
        tops = [
            zip(texts.names([each for each, _ in one.alternatives]), one.alternatives, strict=True) for one in found
        ]
        return {
            "tokens": [texts.name(each) for each in generation.token_ids],
            "token_logprobs": [max(each.logprob, _LEAST_LOGPROB) for each in found],
            "top_logprobs": [{name: max(each, _LEAST_LOGPROB) for name, (_, each) in top} for top in tops],
            "text_offset": texts.offsets(generation.token_ids, generation.text),
        }

    def opening(self, index: int) -> dict[str, Any] | None:
        """Return the choice that begins a streamed answer, or None if the format has none."""
        return None

    def finish_reason(self, index: int, generation: Generation) -> str:
        """Return why an answer ended. Its last piece must have been read."""
        return generation.finish_reason

    def end(self, index: int, generation: Generation, texts: TokenTexts, *, with_tokens: bool) -> dict[str, Any]:
        """Return the fields of a choice that only a finished answer has."""
        payload: dict[str, Any] = {"logprobs": None, "finish_reason": self.finish_reason(index, generation)}
        if generation.logprobs is not None:
            payload["logprobs"] = self.logprobs(generation, generation.logprobs, texts)
        if with_tokens:
            columns = zip(generation.token_ids, generation.revealed_by, generation.entropy, strict=True)
            payload["tokens"] = [
                {"token_id": token_id, "text": texts.text(token_id), "revealed_by": number, "entropy": _finite(entropy)}
                for token_id, number, entropy in columns
            ]
        return payload


class ChatResponse(CompletionResponse):
    """The format of `/v1/chat/completions`."""

    prefix = "chatcmpl"
    whole = "chat.completion"
    piece = "chat.completion.chunk"

    def __init__(self, reader: Callable[[], AnswerReader] | None = None) -> None:
        """`reader` makes the reader of each answer's tool calls; None if answers can't call tools."""
        self._new_reader = reader
        self._no_text = "" if reader is None else None
        self._readers: dict[int, AnswerReader] = {}
        self._pieces: dict[int, list[Piece]] = {}

    def opening(self, index: int) -> dict[str, Any] | None:
        """See `CompletionResponse`."""
        return _choice(index, delta={"role": "assistant", "content": self._no_text})

    def nothing(self, index: int) -> dict[str, Any]:
        """See `CompletionResponse`."""
        return _choice(index, delta={})

    def piece_of(self, index: int, progress: Progress) -> dict[str, Any] | None:
        """See `CompletionResponse`."""
        if self._new_reader is None:
            return _choice(index, delta={"content": progress.text}) if progress.text else None
        reader = self._readers.setdefault(index, self._new_reader())
        reason = None if progress.generation is None else progress.generation.finish_reason
        pieces = reader.read(progress.token_ids, finish_reason=reason)
        self._pieces.setdefault(index, []).extend(pieces)
        content, calls = _joined(pieces)
        delta = {"content": content, "tool_calls": calls}
        return _choice(index, delta={name: each for name, each in delta.items() if each}) if pieces else None

    def answer(self, index: int, generation: Generation) -> dict[str, Any]:
        """See `CompletionResponse`."""
        content, calls = (generation.text, []) if self._new_reader is None else _joined(self._pieces.get(index, []))
        message: dict[str, Any] = {"role": "assistant", "content": content or self._no_text, "refusal": None}
        for call in calls:
            del call["index"]
        return _choice(index, message=message | ({"tool_calls": calls} if calls else {}))

    def logprobs(self, generation: Generation, found: list[TokenLogprobs], texts: TokenTexts) -> dict[str, Any]:
        """See `CompletionResponse`."""

        def entry(token_id: int, logprob: float) -> dict[str, Any]:
            text, encoded = texts.text(token_id), list(texts.bytes(token_id))
            return {"token": text, "bytes": encoded, "logprob": max(logprob, _LEAST_LOGPROB)}

        content = [
            {**entry(token_id, each.logprob), "top_logprobs": [entry(*top) for top in each.alternatives]}
            for token_id, each in zip(generation.token_ids, found, strict=True)
        ]
        return {"content": content, "refusal": None}

    def finish_reason(self, index: int, generation: Generation) -> str:
        """See `CompletionResponse`. A call that was cut at the limit or by a stop text does not count as a call."""
        made = index in self._readers and self._readers[index].has_called
        return "tool_calls" if made and generation.finish_reason == "stop" else generation.finish_reason


def _joined(pieces: Sequence[Piece]) -> tuple[str, list[dict[str, Any]]]:
    """Return the text of pieces, and the parts of calls in them, in OpenAI's format."""
    calls: dict[int, dict[str, Any]] = {}
    for each in pieces:
        if each.kind == "name":
            calls[each.call] = {"index": each.call, "id": f"call_{secrets.token_hex(12)}", "type": "function"}
            calls[each.call]["function"] = {"name": each.text, "arguments": ""}
        elif each.kind == "arguments":
            call = calls.setdefault(each.call, {"index": each.call, "function": {"arguments": ""}})
            call["function"]["arguments"] += each.text
    return "".join(each.text for each in pieces if each.kind == "text"), list(calls.values())


def pass_json(event: RowOutput, texts: TokenTexts) -> dict[str, Any]:
    """Return the output of a pass for one answer as JSON."""

    def reveal(found: Reveal) -> dict[str, Any]:
        text, entropy = texts.text(found.token_id), _finite(found.entropy)
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
