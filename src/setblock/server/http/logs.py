"""Logs, one JSON object a line, and the count of requests.

Texts of prompts and answers are logged only if the server's configuration says so.
"""

import json
import logging
import secrets
import time
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from fastapi.routing import APIRoute
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from setblock.server.http.metrics import Metrics

logger = logging.getLogger("setblock.server")


class JsonLines(logging.Formatter):
    """A formatter that writes a record as a JSON object, with the record's `fields` next to the usual ones."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, in ASCII."""
        line = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def log_to_stderr(level: str) -> None:
    """Write to stderr, as lines of JSON, this package's logs from `level` on and the warnings of other packages."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    logging.getLogger("setblock").setLevel(level.upper())
    # asyncio logs each send after a client has left; the request's own log line says so
    logging.getLogger("asyncio").addFilter(lambda record: record.msg != "socket.send() raised exception.")
    for library in ("uvicorn", "transformers"):  # which may have handlers of their own
        logs = logging.getLogger(library)
        logs.handlers, logs.propagate = [], True


@dataclass
class Account:
    """The log line of one request."""

    id: str  # in the log, and in the header `x-request-id`
    started: float  # `time.perf_counter()` when it came
    fields: dict[str, Any] = field(default_factory=dict)  # further fields of the log line

    @property
    def seconds(self) -> float:
        """Return the seconds since the request came."""
        return time.perf_counter() - self.started


class RequestLog:
    """The outermost ASGI middleware: it gives each request an id, logs it and counts it. `scope["account"]` is the request's
    `Account`."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        account = scope["account"] = Account(secrets.token_hex(8), time.perf_counter())
        status = 499  # nginx's status for a client that left before it was answered

        async def named(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", ()), (b"x-request-id", account.id.encode())]
            await send(message)

        try:
            await self._app(scope, receive, named)
        except Exception:
            status = 500
            raise
        finally:
            found = scope.get("route")
            route = found.path if isinstance(found, APIRoute) else "other"
            self._metrics.requests.labels(route, status).inc()
            self._metrics.request_seconds.labels(route).observe(account.seconds)
            payload = {"id": account.id, "method": scope["method"], "path": scope["path"], "status": status}
            payload |= {"seconds": round(account.seconds, 4), **account.fields}
            level = logging.DEBUG if scope["path"] in ("/health", "/ready", "/metrics") else logging.INFO
            logger.log(level, "request", extra={"fields": payload})
