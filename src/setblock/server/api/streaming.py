"""Send an answer in pieces, as server-sent events, to a client that may leave or read slowly."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from setblock.server.api.protocol import DecodingBody
from setblock.server.api.shapes import CompletionShape, pass_json
from setblock.server.http.errors import ApiError
from setblock.server.serving import Reply

_LAST_WORDS = 5.0  # seconds beyond the limit, in which a client can still learn that the limit was reached


class EventStream(StreamingResponse):
    """Send frames as they are made, as a response. When the client leaves, or reads too slowly, the reply is closed."""

    media_type = "text/event-stream"

    def __init__(self, reply: Reply, frames: AsyncIterator[str]) -> None:
        self._reply = reply
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        seconds = self._reply.serving.config.limits.request_seconds + _LAST_WORDS
        await is_done(receive, self._reply, self.stream_response(send), seconds=seconds)


async def is_done(receive: Receive, reply: Reply, work: Coroutine[Any, Any, Any], seconds: float | None = None) -> bool:
    """Close a reply once work on it is done, its client has left or time is over. Return whether it was the first."""
    tasks = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        return tasks[0].done()
    finally:
        reply.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def frames(reply: Reply, shape: CompletionShape, head: dict[str, Any], body: DecodingBody) -> AsyncIterator[str]:
    """Yield the events of a streamed answer: pieces of text, why each answer ended, the usage if it is wanted, `[DONE]`.
    A pass that made no text certain has a frame only where events are wanted. What goes wrong is the last event."""
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    extra = {"usage": None} if with_usage else {}
    with_events, text_of = bool(body.events), reply.serving.codec.text

    def frame(*choices: dict[str, Any], **more: Any) -> str:
        return _frame({**head, "object": shape.piece, "choices": choices, **extra, **more})

    for place in range(len(reply.generations)):
        if opening := shape.opening(place):
            yield frame(opening)
    try:
        async for place, made in reply.progress():
            events = {"pass_event": pass_json(made.event, text_of)} if with_events and made.event is not None else {}
            if made.text or events:
                yield frame({**shape.text(place, made.text), **events})
            if (answer := made.generation) is not None:
                last = shape.text(place, "", final=True)
                yield frame(last | shape.end(place, answer, text_of, with_tokens=with_events))
    except ApiError as error:
        yield _frame(error.content())
        return
    if with_usage:
        yield frame(usage=reply.usage)
    yield "data: [DONE]\n\n"


def _frame(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, allow_nan=False)}\n\n"
