"""Write logs, one JSON object a line, and count requests. What a client wrote, and what it was answered, is in the logs only
where that was asked for.
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
    """Format a record as a JSON object, with its `fields` next to the usual ones."""

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
    """Write this package's logs, from `level` on, and the warnings of all others to stderr, each a line of JSON."""
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines())
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(logging.WARNING)
    logging.captureWarnings(True)
    logging.getLogger("setblock").setLevel(level.upper())
    logging.getLogger("asyncio").addFilter(_is_news)
    for library in ("uvicorn", "transformers"):  # which may have handlers of their own
        logs = logging.getLogger(library)
        logs.handlers, logs.propagate = [], True


def _is_news(record: logging.LogRecord) -> bool:
    """Return whether a record of asyncio says more than that a client has left: so do the logs of its request."""
    return record.msg != "socket.send() raised exception."


@dataclass
class Account:
    """What became of one request, for its log line."""

    id: str  # names it, in the log and to its client
    started: float  # `time.perf_counter()` when it came
    fields: dict[str, Any] = field(default_factory=dict)  # what else the log is to say of it

    @property
    def seconds(self) -> float:
        """Return the seconds since the request came."""
        return time.perf_counter() - self.started


class RequestLog:
    """Name, log and count each request, as the outermost ASGI middleware. `scope["account"]` is its `Account`."""

    def __init__(self, app: ASGIApp, *, metrics: Metrics) -> None:
        self._app, self._metrics = app, metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """See ASGI."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        account = scope["account"] = Account(secrets.token_hex(8), time.perf_counter())
        status = 499  # what proxies log where a client left before it was answered

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
