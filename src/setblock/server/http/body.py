"""Read bodies of bounded size in bounded time, before anything else happens to a request."""

import asyncio

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from setblock.server.http.errors import ApiError

_DISCARDED = 64  # times the limit: how much of a body that is too large is read, so that its sender gets to the answer


class BoundedBody:
    """Answer 413 where a body is too large, and 408 where it takes too long, as ASGI middleware."""

    def __init__(self, app: ASGIApp, *, max_bytes: int, seconds: float) -> None:
        self._app, self._max_bytes, self._seconds = app, max_bytes, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            async with asyncio.timeout(self._seconds):
                body = await self._read(scope, receive)
        except TimeoutError:
            late = ApiError(408, f"the body took more than {self._seconds:g} seconds to arrive", code="timeout")
            late.headers["Connection"] = "close"
            await late.response()(scope, receive, send)
            return
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        if body is None:  # the client has left
            return
        await self._app(scope, _replayed(body, receive), send)

    async def _read(self, scope: Scope, receive: Receive) -> bytes | None:
        told = Headers(scope=scope).get("content-length", "")
        size = 0
        pieces: list[bytes] = []
        too_large = told.isdecimal() and int(told) > self._max_bytes
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                return None
            piece = message.get("body", b"")
            size += len(piece)
            too_large = too_large or size > self._max_bytes
            pieces = [] if too_large else [*pieces, piece] if piece else pieces
            more = message.get("more_body", False) and size <= _DISCARDED * self._max_bytes
        if too_large:
            raise ApiError(
                413, f"the body must be at most {self._max_bytes} bytes", code="request_too_large",
                headers={"Connection": "close"},
            )  # fmt: skip
        return b"".join(pieces)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that gives a body that was read before, then what comes after it."""
    given = False

    async def replay() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replay
