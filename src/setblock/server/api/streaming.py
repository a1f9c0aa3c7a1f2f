"""Send an answer in pieces, as server-sent events, to a client that may leave or read slowly."""

import asyncio
import json
from collections.abc import AsyncIterator, Coroutine
from typing import Any

from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from setblock.decoding.answer.generation import Generation
from setblock.engine.request import Progress
from setblock.server.api.shapes import Shape, pass_json, tokens_json, usage_of
from setblock.server.http.errors import ApiError, timed_out
from setblock.server.serving import Reply, Serving

_LAST_WORDS = 5.0  # seconds beyond the limit, in which a client can still learn that the limit was reached


class EventStream(StreamingResponse):
    """Send frames as they are made, as a response. When the client leaves, or reads too slowly, the reply is closed."""

    media_type = "text/event-stream"

    def __init__(self, frames: AsyncIterator[str], *, reply: Reply, seconds: float) -> None:
        self._reply, self._seconds = reply, seconds
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        await _first_of(receive, self._reply, self.stream_response(send), seconds=self._seconds + _LAST_WORDS)


async def wait_for_answers(receive: Receive, reply: Reply, seconds: float) -> bool:
    """Wait for all answers, and return whether the client did so, too. Raise `ApiError` if it took longer than `seconds`, or
    something broke."""
    is_done, has_left = await _first_of(receive, reply, reply.finish(), seconds=seconds)
    if not (is_done or has_left):
        raise timed_out(seconds)
    return is_done


async def _first_of(
    receive: Receive, reply: Reply, work: Coroutine[Any, Any, Any], *, seconds: float
) -> tuple[bool, bool]:
    """Wait until work on a reply is done, the client has left or time is over, and close the reply. Return which of the
    first two is so."""
    tasks = asyncio.create_task(work), asyncio.create_task(_left(receive))
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if tasks[0].done():
            tasks[0].result()
        return tasks[0].done(), tasks[1].done()
    finally:
        reply.close()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def in_time(reply: Reply, seconds: float) -> AsyncIterator[tuple[int, Progress]]:
    """Yield what `reply` does, or raise `ApiError` if it takes longer than `seconds`, or something broke."""
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                made = await anext(reply)
        except StopAsyncIteration:
            return
        except TimeoutError as error:
            raise timed_out(seconds) from error
        yield made


async def frames(
    serving: Serving, reply: Reply, shape: Shape, head: dict[str, Any], *, with_usage: bool, with_events: bool
) -> AsyncIterator[str]:
    """Yield the events of a streamed answer: pieces of text, why each answer ended, the usage if it is wanted,
    `[DONE]`.

    A pass that made no text certain has a frame only where events are wanted. What goes wrong on the way is the last event.
    """
    extra = {"usage": None} if with_usage else {}

    def frame(choice: dict[str, Any]) -> str:
        return _frame({**head, "object": shape.piece, "choices": [choice], **extra})

    for place in range(len(reply.generations)):
        opening = shape.opening(place)
        if opening is not None:
            yield frame(opening)
    try:
        async for place, made in in_time(reply, serving.config.limits.request_seconds):
            events = {}
            if with_events and made.event is not None:
                events["pass_event"] = pass_json(made.event, serving.codec.text)
            if made.text or events:
                yield frame({**shape.text(place, made.text), **events})
            if made.generation is not None:
                yield frame(_last(serving, shape, place, made.generation, with_events=with_events))
    except ApiError as error:
        yield _frame(error.content())
        return
    if with_usage:
        usage = usage_of(reply.prompt_tokens, reply.done)
        yield _frame({**head, "object": shape.piece, "choices": [], "usage": usage})
    yield "data: [DONE]\n\n"


def _last(serving: Serving, shape: Shape, place: int, generation: Generation, *, with_events: bool) -> dict[str, Any]:
    """Return the choice that says why an answer ended. How likely its tokens were is known only then."""
    last = {**shape.text(place, "", final=True), "finish_reason": shape.finish_reason(place, generation)}
    if generation.logprobs is not None:
        last["logprobs"] = shape.logprobs(generation, serving.codec.text)
    if with_events:
        last["tokens"] = tokens_json(generation, serving.codec.text)
    return last


def _frame(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, allow_nan=False)}\n\n"
