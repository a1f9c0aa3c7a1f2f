"""Access control: host names, origins, API keys, the number of requests at once, and the size and time of bodies."""

import asyncio
import hmac
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from setblock.errors import SetBlockError, shown
from setblock.files import read_text
from setblock.server.http.errors import ApiError, bad_request, unavailable
from setblock.server.http.limits import ServerLimits

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_LEAST_KEY = 8
_API = "/v1/"  # what keys protect


class Keys:
    """API keys. They are compared in constant time."""

    def __init__(self, keys: Sequence[str]) -> None:
        for key in keys:
            if len(key) < _LEAST_KEY or not key.isascii() or not key.isprintable() or " " in key:
                raise SetBlockError(
                    f"an API key must be at least {_LEAST_KEY} printable ASCII characters without spaces"
                )
        self._digests = [sha256(key.encode()).digest() for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def know(self, key: str) -> bool:
        """Return whether `key` is one of the keys."""
        digest = sha256(key.encode()).digest()
        return sum([hmac.compare_digest(digest, each) for each in self._digests]) > 0


def read_keys(path: Path | None, variable: str | None) -> Keys:
    """Read keys from a file, one a line (a line that begins with # is a comment), and from the value of an
    environment variable, separated by commas. Raise `SetBlockError` if the file can't be read or has no key."""
    found = [key.strip() for key in (variable or "").split(",") if key.strip()]
    if path is not None:
        lines = map(str.strip, read_text(path, what="the API keys in").splitlines())
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise SetBlockError(f"{path} has no API key: write one per line")
        found += keys
    return Keys(found)


def host_patterns(hosts: Collection[str]) -> list[str]:
    """Return the allowed host names in small letters, or `*` if `hosts` is empty. Raise `SetBlockError` if one is neither a
    name nor a pattern such as `*.example.com`."""
    for host in hosts:
        if "*" in host.removeprefix("*.") and host != "*":
            raise SetBlockError(f"an allowed host must be a name or a pattern such as *.example.com, not {host!r}")
    return [host.lower() for host in hosts] or ["*"]


def origins_of(origins: Collection[str]) -> list[str]:
    """Return the allowed origins in small letters. Raise `SetBlockError` if one is neither an origin nor `*`."""
    for origin in origins:
        if origin != "*" and not re.fullmatch(r"[a-z][a-z0-9+.-]*://[^/\s]+", origin.lower()):
            raise SetBlockError(
                f"an allowed origin must be like https://example.com, without a path, or *, not {origin!r}"
            )
    return [origin.lower() for origin in origins]


class Admission:
    """The number of requests in progress, with an upper limit."""

    def __init__(self, most: int) -> None:
        self.active = 0
        self.is_closed = False  # once the server is shutting down
        self._most = most

    def check(self) -> None:
        """Raise `ApiError` if no further request is admitted."""
        if self.is_closed:
            raise unavailable()
        if self.active >= self._most:
            raise ApiError(429, f"{self.active} requests are being answered, and no more than that may be at once")

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count a request while active. Raise `ApiError` if it is not admitted."""
        self.check()
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1


class Bodies:
    """A reader of request bodies. Each has a time limit. If more than `most` are being read, the one that has taken longest is
    dropped, so that bodies that never end can't block others."""

    def __init__(self, most: int, limits: ServerLimits) -> None:
        self._most, self._limits = most, limits
        self._unfinished: dict[asyncio.Timeout, None] = {}  # the timeouts of bodies being read, the oldest first

    async def read(self, receive: Receive) -> bytes:
        """Return a whole body. Raise `ApiError` if it is too large or too slow, or the client disconnects."""
        loop, seconds = asyncio.get_running_loop(), self._limits.body_seconds
        if len(self._unfinished) >= self._most:
            slowest = next(iter(self._unfinished))
            del self._unfinished[slowest]
            slowest.reschedule(loop.time())
        try:
            async with asyncio.timeout(seconds) as timeout:
                self._unfinished[timeout] = None
                try:
                    return await self._whole(receive)
                finally:
                    self._unfinished.pop(timeout, None)
        except TimeoutError as error:
            message = (
                f"the body took more than {seconds:g} seconds to arrive, or was the slowest of more than {self._most}"
            )
            raise ApiError(408, message) from error

    async def _whole(self, receive: Receive) -> bytes:
        most, pieces, size, is_whole = self._limits.max_body_bytes, list[bytes](), 0, False
        while not is_whole and size <= _DISCARDED * most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ApiError(499, "the client has left")
            pieces.append(message.get("body", b""))
            size, is_whole = size + len(pieces[-1]), not message.get("more_body", False)
            if size > most:
                pieces.clear()
        if size > most:
            raise ApiError(413, f"the body must be at most {most} bytes")
        return b"".join(pieces)


_DISCARDED = (
    64  # times the limit: how much of too large a body is read, since clients read the answer only after sending
)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` that first returns a body that was read already."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return waiting.pop() if waiting else await receive()

    return replayed


class AccessControl:
    """ASGI middleware that refuses requests without access. Only requests that decode count as in progress, once their body
    is read."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        hosts: Collection[str],
        origins: Collection[str] = (),
        keys: Keys,
        admission: Admission,
        limits: ServerLimits,
    ) -> None:
        self._app, self._hosts, self._origins, self._keys = app, hosts, origins, keys
        self._admission, self._bodies = admission, Bodies(limits.max_requests, limits)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            self._check(scope)
            if not (scope["path"].startswith(_API) and scope["method"] == "POST"):
                await self._app(scope, receive, send)
                return
            self._admission.check()
            body = await self._bodies.read(receive)
            with self._admission.place():
                await self._app(scope, _replayed(body, receive), send)
        except ApiError as error:
            await error.response()(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # Against DNS rebinding: the page of a name that was made to resolve to this server could read the answers
        named = headers.get("host", "").lower()
        host = re.sub(r":\d*$", "", named)
        if not any(host == each or (each.startswith("*") and host.endswith(each[1:])) for each in self._hosts):
            message = f"this server does not answer to the host name {shown(host)}: --allowed-host allows it"
            raise bad_request(message, code="invalid_host")
        # A browser sends the origin of the page. Pages of other sites could otherwise make this machine decode
        origin = headers.get("origin", "").lower()
        is_own = origin.partition("://")[2] == named
        if origin and not is_own and not {origin, "*"} & {*self._origins}:
            message = f"this server does not answer to pages of {shown(origin)}: --allowed-origin allows them"
            raise ApiError(403, message, code="invalid_origin")
        if self._keys and scope["path"].startswith(_API):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not key.strip():
                raise ApiError(401, "an API key is required: Authorization: Bearer KEY")
            if not self._keys.know(key.strip()):
                raise ApiError(401, "the API key is not one of this server's")
