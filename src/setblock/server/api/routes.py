"""The routes: OpenAI's, those for orchestrators and Prometheus, and the playground's page with its files.

Answers are sent whole, or as server-sent events to a client that may leave or read slowly.
"""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Coroutine
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from fastapi.security import HTTPBearer
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from setblock.server.api.protocol import ChatBody, CompletionBody, DecodingBody
from setblock.server.api.responses import ChatResponse, CompletionResponse, pass_json
from setblock.server.api.settings import calls_asked
from setblock.server.http.errors import DESCRIBED, ApiError, bad_request, unavailable
from setblock.server.serving import Reply, Serving

# For the schema only: `AccessControl` checks keys, before a body is read
_KEY = Depends(HTTPBearer(auto_error=False, description="An API key, if the server has any."))
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": {"type": "string"}}}}}

api = APIRouter(dependencies=[_KEY], responses=DESCRIBED)
operations = APIRouter()


async def _serving(request: Request) -> Any:  # in the event loop, and not in a thread of its own
    return request.app.state.serving


Served = Annotated[Serving, Depends(_serving)]


@api.post("/v1/chat/completions", responses=_STREAM)
async def chat(body: ChatBody, request: Request, serving: Served) -> Any:
    """Answer a chat."""
    serving.check_model(body.model)
    kwargs = {**serving.config.chat_template_kwargs, **(body.chat_template_kwargs or {})}
    if kwargs:
        await serving.tokenizers.check_template_kwargs(kwargs)
    calls, described = None, None
    if not body.tools and body.tool_choice not in (None, "none", "auto"):
        raise bad_request("tool_choice needs tools", param="tool_choice")
    if body.tools and body.tool_choice != "none":
        calls = calls_asked(await serving.tokenizers.call_form(kwargs), body)
        described = [tool.model_dump(exclude_none=True) for tool in body.tools]
    prompt = await serving.tokenizers.encode_chat([each.plain() for each in body.messages], described, kwargs)
    if serving.config.logs_text:
        request.scope["account"].fields["messages"] = [message.model_dump() for message in body.messages]
    reply = await serving.open(body, [prompt], request.scope["account"], calls=calls)
    return await _answer(request, body, reply, ChatResponse(serving.tokenizers.reader(calls, stop=reply.settings.stop)))


@api.post("/v1/completions", responses=_STREAM)
async def completions(body: CompletionBody, request: Request, serving: Served) -> Any:
    """Continue texts."""
    serving.check_model(body.model)
    prompts = [await serving.tokenizers.encode_text(prompt) for prompt in body.prompt]
    if serving.config.logs_text:
        request.scope["account"].fields["prompts"] = body.prompt
    reply = await serving.open(body, prompts, request.scope["account"])
    return await _answer(request, body, reply, CompletionResponse())


@api.get("/v1/models")
async def models(serving: Served) -> Any:
    """List the model that is served."""
    return {"object": "list", "data": [serving.card]}


@api.get("/v1/models/{name:path}")
async def model(name: str, serving: Served) -> Any:
    """Describe the model of this id."""
    serving.check_model(name)
    return serving.card


@operations.get("/health", responses={500: {"description": "The engine has failed."}})
async def health(serving: Served) -> Any:
    """Return whether the process works; if not, start another."""
    if serving.worker.failure is not None:
        raise serving.why_stopped()
    return {"status": "ok"}


@operations.get("/ready", responses={503: {"description": "The server is shutting down."}})
async def ready(serving: Served) -> Any:
    """Return whether the server takes requests; it does not while it shuts down."""
    if serving.admission.is_closed or not serving.worker.is_well:
        raise unavailable()
    return {"status": "ok"}


@operations.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
async def metrics(serving: Served) -> Response:
    """Return the metrics that Prometheus reads."""
    return Response(generate_latest(serving.metrics.registry), headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _answer(request: Request, body: DecodingBody, reply: Reply, shape: CompletionResponse) -> Any:
    head = {"id": f"{shape.prefix}-{reply.account.id}", "created": int(time.time()), "model": body.model}
    if body.stream:
        return EventStream(reply, frames(reply, shape, head, body))
    if not await is_done(request.receive, reply, _read(reply, shape)):
        return Response(status_code=499)
    texts, with_tokens = reply.serving.tokenizers.texts, bool(body.events)
    choices = [
        shape.answer(place, each) | shape.end(place, each, texts, with_tokens=with_tokens)
        for place, each in enumerate(reply.done)
    ]
    return {**head, "object": shape.whole, "choices": choices, "usage": reply.usage}


async def _read(reply: Reply, shape: CompletionResponse) -> None:
    """Wait until all answers are finished."""
    async for place, made in reply.progress():
        shape.piece_of(place, made)


_LAST_WORDS = 5.0  # seconds beyond the limit, to send the client the error that the limit was reached


class EventStream(StreamingResponse):
    """A response of server-sent events. When the client leaves or reads too slowly, the reply is closed."""

    media_type = "text/event-stream"

    def __init__(self, reply: Reply, frames: AsyncIterator[str]) -> None:
        self._reply = reply
        super().__init__(frames, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        seconds = self._reply.serving.config.limits.request_seconds + _LAST_WORDS
        await is_done(receive, self._reply, self.stream_response(send), seconds=seconds)


async def is_done(receive: Receive, reply: Reply, work: Coroutine[Any, Any, Any], seconds: float | None = None) -> bool:
    """Await `work` on a reply, until its client has left or the time is over, and close the reply. Return whether the work was
    done."""
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


async def frames(
    reply: Reply, shape: CompletionResponse, head: dict[str, Any], body: DecodingBody
) -> AsyncIterator[str]:
    """Yield the events of a streamed answer: pieces of text, why each answer ended, the usage if requested, and `[DONE]`. A
    pass that made no text final has an event only if the request wants all passes. An error is the last event."""
    with_usage = body.stream_options is not None and bool(body.stream_options.include_usage)
    extra = {"usage": None} if with_usage else {}
    with_events, texts = bool(body.events), reply.serving.tokenizers.texts

    def frame(*choices: dict[str, Any], **more: Any) -> str:
        return _frame({**head, "object": shape.piece, "choices": choices, **extra, **more})

    for place in range(len(reply.generations)):
        if opening := shape.opening(place):
            yield frame(opening)
    try:
        async for place, made in reply.progress():
            events = {"pass_event": pass_json(made.event, texts)} if with_events and made.event is not None else {}
            piece = shape.piece_of(place, made)
            if piece is not None or events:
                yield frame({**(piece or shape.nothing(place)), **events})
            if (answer := made.generation) is not None:
                yield frame(shape.nothing(place) | shape.end(place, answer, texts, with_tokens=with_events))
    except ApiError as error:
        reply.account.fields["error"] = error.code  # the status said that all was well
        yield _frame(error.content())
        return
    if with_usage:
        yield frame(usage=reply.usage)
    yield "data: [DONE]\n\n"


def _frame(content: dict[str, Any]) -> str:
    return f"data: {json.dumps(content, allow_nan=False)}\n\n"


_FOLDER = files("setblock.server") / "page"
_KINDS = {".html": "text/html", ".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript"}
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    "Cache-Control": "no-cache",
}

page = APIRouter(include_in_schema=False)


def _add(path: str, name: str) -> None:
    async def send() -> Response:
        return Response((_FOLDER / name).read_bytes(), media_type=_KINDS[Path(name).suffix], headers=HEADERS)

    page.add_api_route(path, send, methods=["GET"], name=name)


_add("/", "index.html")
for _file in _FOLDER.iterdir():
    _add(f"/page/{_file.name}", _file.name)
