"""Serve the part of OpenAI's Responses API that is plain text: one message in answer to a conversation.

Knows that API's objects and events. What else it has (tools, files, stored conversations) is refused by name.
"""

import json
import time
from collections.abc import AsyncIterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field, WithJsonSchema, model_validator

from setblock.decoding.generate import Generation
from setblock.server.api.protocol import MOST_TOKENS, REFUSED, DecodingBody, joined_parts
from setblock.server.api.replies import Passes
from setblock.server.api.shapes import usage_of
from setblock.server.api.streaming import in_time
from setblock.server.api.tools import Body
from setblock.server.http.errors import ApiError
from setblock.server.http.limits import MAX_MESSAGES
from setblock.server.serving import Reply, Serving

_KINDS = ("input_text", "output_text", "text")
_PART = {
    "type": "object",
    "properties": {"type": {"enum": list(_KINDS)}, "text": {"type": "string"}},
    "required": ["type", "text"],
}
_NOT_KEPT = "answers are not kept: send the whole conversation as input"
_OF_CHATS = "use /v1/chat/completions"
_PLAIN = ({"format": {"type": "text"}}, {"format": {"type": "text"}, "verbosity": None})


class InputMessage(Body):
    """Hold a message of a conversation; one that the server has written comes back as it was."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: Annotated[
        str,
        BeforeValidator(lambda content: joined_parts(content, *_KINDS)),
        WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "array", "items": _PART}]}),
    ]

    @model_validator(mode="before")
    @classmethod
    def _without_marks(cls, value: Any) -> Any:
        """Drop what the API puts on its own messages."""
        marks = ("id", "status", "phase")
        return {key: each for key, each in value.items() if key not in marks} if isinstance(value, Mapping) else value


def _as_messages(value: Any) -> Any:
    return [{"role": "user", "content": value}] if isinstance(value, str) else value


class ResponsesBody(DecodingBody):
    """Hold the body of POST /v1/responses."""

    prompt_name = "input"
    refused: ClassVar[Mapping[str, tuple[tuple[Any, ...], str]]] = REFUSED | {
        "previous_response_id": ((None,), _NOT_KEPT),
        "conversation": ((None,), _NOT_KEPT),
        "background": ((None, False), _NOT_KEPT),
        "prompt": ((None,), "prompts are not kept: send instructions and input"),
        "text": ((None, {}, *_PLAIN), f"answers are plain text: for a schema {_OF_CHATS}"),
        "tools": ((None, []), f"answers are plain text: for tools {_OF_CHATS}"),
        "tool_choice": ((None, "auto", "none"), f"answers are plain text: for tools {_OF_CHATS}"),
        "parallel_tool_calls": ((None, True, False), "answers are plain text"),
        "max_tool_calls": ((None,), f"answers are plain text: for tools {_OF_CHATS}"),
        "include": ((None, []), "there is nothing to include"),
        "reasoning": ((None, {}), "the model has no such setting"),
        "truncation": ((None, "disabled"), "a conversation that is too long is refused"),
        "top_logprobs": ((None, 0), f"for log-probabilities {_OF_CHATS}"),
        "max_tokens": ((None,), "use max_output_tokens"),
        "n": ((None, 1), f"for several answers {_OF_CHATS}"),
    }
    input: Annotated[
        list[InputMessage],
        BeforeValidator(_as_messages),
        Field(min_length=1, max_length=MAX_MESSAGES, description="A text, or the messages of a conversation."),
    ]
    instructions: str | None = Field(default=None, description="A system message that stands before the input.")
    max_output_tokens: int | None = MOST_TOKENS

    @property
    def limit(self) -> tuple[str, int | None]:
        """See `DecodingBody`."""
        return "max_output_tokens", self.max_output_tokens

    def messages(self) -> list[dict[str, Any]]:
        """Return the conversation as chat templates take it."""
        before = [] if self.instructions is None else [{"role": "system", "content": self.instructions}]
        return before + [
            {"role": "system" if each.role == "developer" else each.role, "content": each.content}
            for each in self.input
        ]


class ResponseReply(BaseModel):
    """Hold an answer as the Responses API has it. `usage` also counts passes."""

    id: str
    object: Literal["response"]
    created_at: int
    status: Literal["in_progress", "completed", "incomplete"]
    model: str
    output: list["OutputMessage"]
    usage: "ResponseUsage | None"
    error: None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    temperature: float
    top_p: float
    text: dict[str, Any]
    tools: list[Any]
    tool_choice: Literal["none"]
    parallel_tool_calls: bool
    truncation: Literal["disabled"]
    store: Literal[False]
    previous_response_id: None
    metadata: dict[str, str]


class OutputText(BaseModel):
    """Hold the text of a message."""

    type: Literal["output_text"]
    text: str
    annotations: list[Any]
    logprobs: list[Any]


class OutputMessage(BaseModel):
    """Hold a message that the model wrote."""

    id: str
    type: Literal["message"]
    role: Literal["assistant"]
    status: Literal["in_progress", "completed", "incomplete"]
    content: list[OutputText]


class ResponseUsage(BaseModel):
    """Count the tokens and passes of an answer. The fields after `total_tokens` are this server's own."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int
    num_forwards: int
    passes: Passes
    tokens_per_forward: float | None


class ResponseShape:
    """Write an answer as the Responses API does."""

    def __init__(self, body: ResponsesBody, account_id: str, model: str) -> None:
        self.message_id = f"msg_{account_id}"
        self._head = dict[str, Any](
            id=f"resp_{account_id}",
            object="response",
            created_at=int(time.time()),
            model=model,
            error=None,
            instructions=body.instructions,
            max_output_tokens=body.max_output_tokens,
            temperature=body.temperature or 0.0,
            top_p=1.0 if body.top_p is None else body.top_p,
            text={"format": {"type": "text"}},
            tools=[],
            tool_choice="none",
            parallel_tool_calls=False,
            truncation="disabled",
            store=False,
            previous_response_id=None,
            metadata={},
        )

    def begun(self) -> dict[str, Any]:
        """Return the response before any text."""
        return {**self._head, "status": "in_progress", "output": [], "usage": None, "incomplete_details": None}

    def part(self, text: str) -> dict[str, Any]:
        """Return the text of the message."""
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": []}

    def message(self, status: str, *parts: dict[str, Any]) -> dict[str, Any]:
        """Return the message."""
        head = {"id": self.message_id, "type": "message", "role": "assistant"}
        return {**head, "status": status, "content": list(parts)}

    def whole(self, prompt_tokens: int, generation: Generation) -> dict[str, Any]:
        """Return the response with its answer."""
        is_cut = generation.finish_reason == "length"
        status = "incomplete" if is_cut else "completed"
        counted = usage_of(prompt_tokens, [generation])
        usage = {
            "input_tokens": counted.pop("prompt_tokens"),
            "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
            "output_tokens": counted.pop("completion_tokens"),
            "output_tokens_details": {"reasoning_tokens": 0},
            **counted,
        }
        return {
            **self._head,
            "status": status,
            "output": [self.message(status, self.part(generation.text))],
            "usage": usage,
            "incomplete_details": {"reason": "max_output_tokens"} if is_cut else None,
        }


async def response_frames(serving: Serving, reply: Reply, shape: ResponseShape) -> AsyncIterator[str]:
    """Yield the events of a streamed response. What goes wrong on the way is the last event."""
    number = 0

    def frame(kind: str, **content: Any) -> str:
        nonlocal number
        number += 1
        event = {"type": kind, "sequence_number": number - 1, **content}
        return f"event: {kind}\ndata: {json.dumps(event, allow_nan=False)}\n\n"

    item, text = {"output_index": 0, "item_id": shape.message_id}, "response.output_text"
    part = {**item, "content_index": 0}
    yield frame("response.created", response=shape.begun())
    yield frame("response.in_progress", response=shape.begun())
    yield frame("response.output_item.added", output_index=0, item=shape.message("in_progress"))
    yield frame("response.content_part.added", **part, part=shape.part(""))
    generation: Generation | None = None
    try:
        async for _, made in in_time(reply, serving.limits.request_seconds):
            if made.text:
                yield frame(f"{text}.delta", **part, delta=made.text, logprobs=[])
            generation = made.generation
    except ApiError as error:
        told = error.content()["error"]
        yield frame("error", code=told["code"] or told["type"], message=told["message"], param=told["param"])
        return
    assert generation is not None
    whole = shape.whole(reply.prompt_tokens, generation)
    yield frame(f"{text}.done", **part, text=generation.text, logprobs=[])
    yield frame("response.content_part.done", **part, part=shape.part(generation.text))
    yield frame("response.output_item.done", output_index=0, item=whole["output"][0])
    yield frame(f"response.{whole['status']}", response=whole)
