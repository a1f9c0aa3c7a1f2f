"""Control who may come in: API keys, and how many at once. Host names are checked by Starlette.

Knows HTTP. Knows nothing of models, and reads no bodies.
"""

import asyncio
import hmac
from collections.abc import Collection, Sequence
from contextlib import suppress
from hashlib import sha256
from pathlib import Path

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from setblock.errors import SetBlockError
from setblock.files import read_text
from setblock.server.http.errors import ApiError, too_many, unavailable, wrong_key

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
_LEAST_KEY = 8


class Keys:
    """Hold API keys. Which one a client gave, and how much of it was right, can't be learned from how long it takes to say
    no."""

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
    """Read keys from a file, one a line (# begins a comment), and from an environment variable, with commas between
    them.

    Raises:
        SetBlockError: the file can't be read, or holds no key.
    """
    found = [key.strip() for key in (variable or "").split(",") if key.strip()]
    if path is not None:
        lines = map(str.strip, read_text(path, what="the API keys in").splitlines())
        keys = [line for line in lines if line and not line.startswith("#")]
        if not keys:
            raise SetBlockError(f"{path} has no API key: write one per line")
        found += keys
    return Keys(found)


def host_patterns(hosts: Collection[str]) -> list[str]:
    """Return the names by which the server may be called, as Starlette takes them; any where there are none.

    Raises:
        SetBlockError: one is neither a name nor a pattern such as `*.example.com`.
    """
    for host in hosts:
        if "*" in host.removeprefix("*.") and host != "*":
            raise SetBlockError(f"an allowed host must be a name or a pattern such as *.example.com, not {host!r}")
    return list(hosts) or ["*"]


class Admission:
    """Count the requests that are being answered, and decide whether more may come."""

    def __init__(self, most: int) -> None:
        self.active = 0
        self.is_closed = False
        self._most = most
        self._idle = asyncio.Event()
        self._idle.set()

    def enter(self) -> None:
        """Take a place.

        Raises:
            ApiError: there is none.
        """
        if self.is_closed:
            raise unavailable()
        if self.active >= self._most:
            raise too_many(f"{self.active} requests are being answered, and no more than that may be at once")
        self.active += 1
        self._idle.clear()

    def leave(self) -> None:
        """Give it back."""
        self.active -= 1
        if not self.active:
            self._idle.set()

    async def drained(self, seconds: float) -> None:
        """Wait until no request is being answered, or for so long."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._idle.wait()


class AccessControl:
    """Refuse requests that may not come in, as ASGI middleware. Only what decodes or encodes takes a place."""

    def __init__(self, app: ASGIApp, *, keys: Keys, admission: Admission) -> None:
        self._app, self._keys, self._admission = app, keys, admission

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        takes_place = is_api(scope["path"]) and scope["method"] == "POST"
        try:
            self._check(scope)
            if takes_place:
                self._admission.enter()
        except ApiError as error:
            await error.response()(scope, receive, send)
            return
        try:
            await self._app(scope, receive, send)
        finally:
            if takes_place:
                self._admission.leave()

    def _check(self, scope: Scope) -> None:
        if self._keys and is_api(scope["path"]):
            scheme, _, key = Headers(scope=scope).get("authorization", "").partition(" ")
            if scheme.lower() != "bearer" or not key.strip():
                raise wrong_key("an API key is required: Authorization: Bearer KEY")
            if not self._keys.know(key.strip()):
                raise wrong_key("the API key is not one of this server's")


def is_api(path: str) -> bool:
    """Return whether a path is part of what keys protect."""
    return path.startswith("/v1/") or path == "/tokenize"
