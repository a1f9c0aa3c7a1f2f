"""Control what may come in: host names, API keys, how many requests at once, and bodies of bounded size in bounded time.

Knows HTTP. Knows nothing of models.
"""

import asyncio
import hmac
import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
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
    """Hold API keys. The time that a refusal takes says nothing of them, nor how much of a wrong one was right."""

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
        """Return whether a key is one of them."""
        digest = sha256(key.encode()).digest()
        return sum([hmac.compare_digest(digest, each) for each in self._digests]) > 0


def read_keys(path: Path | None, variable: str | None) -> Keys:
    """Read keys from a file, one a line (# begins a comment), and from an environment variable, with commas between them,
    or raise `SetBlockError` if the file can't be read, or holds no key."""
    found = [key.strip() for key in (variable or "").split(",") if key.strip()]
    if path is not None:
        lines = map(str.strip, read_text(path, what="the API keys in").splitlines())
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise SetBlockError(f"{path} has no API key: write one per line")
        found += keys
    return Keys(found)


def host_patterns(hosts: Collection[str]) -> list[str]:
    """Return the names by which the server may be called, in small letters; any where there are none. Raise `SetBlockError`
    if one is neither a name nor a pattern such as `*.example.com`."""
    for host in hosts:
        if "*" in host.removeprefix("*.") and host != "*":
            raise SetBlockError(f"an allowed host must be a name or a pattern such as *.example.com, not {host!r}")
    return [host.lower() for host in hosts] or ["*"]


class Admission:
    """Count the requests that are being answered, and decide whether more may come."""

    def __init__(self, most: int) -> None:
        self.active = 0
        self.is_closed = False
        self._most = most

    @contextmanager
    def place(self) -> Iterator[None]:
        """Hold a place while active, or raise `ApiError` if there is none."""
        if self.is_closed:
            raise unavailable()
        if self.active >= self._most:
            raise ApiError(429, f"{self.active} requests are being answered, and no more than that may be at once")
        self.active += 1
        try:
            yield
        finally:
            self.active -= 1


_DISCARDED = 64  # times the limit: how much of a body that is too large is read, so that its sender gets to the answer


class AccessControl:
    """Refuse requests that may not come in, as ASGI middleware. Only what decodes takes a place. Whoever reads a body that is
    too large, or takes too long, has status 413 or 408 raised."""

    def __init__(
        self, app: ASGIApp, *, hosts: Collection[str], keys: Keys, admission: Admission, limits: ServerLimits
    ) -> None:
        self._app, self._hosts, self._keys, self._admission, self._limits = app, hosts, keys, admission, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        takes_place = scope["path"].startswith(_API) and scope["method"] == "POST"
        try:
            self._check(scope)
            with self._admission.place() if takes_place else nullcontext():
                await self._app(scope, self._bounded(receive), send)
        except ApiError as error:
            await error.response()(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        # A page elsewhere whose name was made to lead here could otherwise read the answers.
        host = re.sub(r":\d*$", "", headers.get("host", "")).lower()
        if not any(host == each or (each.startswith("*") and host.endswith(each[1:])) for each in self._hosts):
            told = f"this server does not answer to the host name {shown(host)}: --allowed-host allows it"
            raise bad_request(told, code="invalid_host")
        if self._keys and scope["path"].startswith(_API):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not key.strip():
                raise ApiError(401, "an API key is required: Authorization: Bearer KEY")
            if not self._keys.know(key.strip()):
                raise ApiError(401, "the API key is not one of this server's")

    def _bounded(self, receive: Receive) -> Receive:
        most, seconds = self._limits.max_body_bytes, self._limits.body_seconds
        deadline: float | None = asyncio.get_running_loop().time() + seconds
        size = 0

        async def bounded() -> Message:
            nonlocal deadline, size
            try:
                async with asyncio.timeout_at(deadline):
                    message = await receive()
                    size += len(message.get("body", b""))
                    if size > most:
                        while message.get("more_body", False) and size <= _DISCARDED * most:
                            message = await receive()
                            size += len(message.get("body", b""))
                        raise ApiError(413, f"the body must be at most {most} bytes")
            except TimeoutError as error:
                raise ApiError(408, f"the body took more than {seconds:g} seconds to arrive") from error
            if deadline is not None and message["type"] == "http.disconnect":
                raise ApiError(499, "the client has left")
            if not message.get("more_body", False):
                deadline = None
            return message

        return bounded
