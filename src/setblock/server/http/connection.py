"""HTTP connections with time limits: for sending the head of a request, and for reading the rest of an answer."""

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from setblock.server.http.limits import ServerLimits


class Connection(H11Protocol):
    """One connection. Its time for the head of a request begins when it is opened, and with the first byte after an answer."""

    def __init__(self, *arguments: Any, limits: ServerLimits, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._limits = limits
        self._head: asyncio.TimerHandle | None = None  # runs while the head of a request is awaited

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn's
        """See `asyncio.Protocol`."""
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """See `asyncio.Protocol`."""
        super().data_received(data)
        if self.cycle is None or self.cycle.response_complete:
            self._await_head()
        else:
            self._stop_waiting()

    def connection_lost(self, exc: Exception | None) -> None:
        """See `asyncio.Protocol`."""
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        """See uvicorn, which calls this when an answer is written to the connection, whose buffer may still have some of it."""
        super().on_response_complete()
        if self.transport.get_write_buffer_size():
            self.loop.call_later(self._limits.request_seconds, self._abort_unless_read, self.cycle)

    def _await_head(self) -> None:
        if self._head is None:
            self._head = self.loop.call_later(self._limits.body_seconds, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._head is not None:
            self._head.cancel()
            self._head = None

    def _abort_unless_read(self, of_request: object) -> None:
        if self.cycle is of_request and self.transport.get_write_buffer_size():
            self.transport.abort()
