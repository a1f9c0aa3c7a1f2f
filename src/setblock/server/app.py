"""The server: an ASGI application with its routes, middleware and handling of errors, and the process that runs it.

On a signal to stop, the process finishes the requests that it has begun.
"""

import logging
import os
import signal
import socket
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from functools import partial
from importlib.metadata import version
from types import FrameType
from typing import Any

import uvicorn
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response

from setblock.decoding.samplers import SAMPLERS, EntropyPrefix
from setblock.decoding.samplers.named import parameters_of
from setblock.decoding.settings.table import METHODS
from setblock.engine.engine import Engine
from setblock.errors import SetBlockError
from setblock.model.protocol.runtime import LanguageModel
from setblock.server.api.routes import api, operations, page
from setblock.server.http.access import AccessControl, Admission, host_patterns
from setblock.server.http.connection import Connection
from setblock.server.http.errors import ApiError, from_validation
from setblock.server.http.logs import RequestLog, log_to_stderr
from setblock.server.http.metrics import Metrics
from setblock.server.serving import ServerConfig, Serving
from setblock.server.tokenizer_pool import TokenizerPool
from setblock.server.worker import Worker

logger = logging.getLogger("setblock.server")


def create_app(model: LanguageModel, config: ServerConfig) -> FastAPI:
    """Return the application. Its `Serving` is `app.state.serving`."""
    engine = Engine(model, config.engine)
    worker = Worker(engine)
    sbd_config = {
        "methods": [each for each in METHODS if model.sbd_config or each != "sbd"],
        "samplers": {name: parameters_of(name) for name in SAMPLERS},
        "block_sizes": list(model.sbd_config.block_sizes if model.sbd_config else ()),
        "gammas": list(EntropyPrefix.dial.values),
        "context_length": model.context_length,
        "method": config.default.method,
        "example": config.example,
        "notice": config.notice,
    }
    serving = Serving(
        config,
        card={
            "id": config.name,
            "object": "model",
            "created": int(time.time()),
            "owned_by": "setblock",
            "setblock": sbd_config,
        },
        room=min(filter(None, (model.context_length, engine.max_model_len))),
        worker=worker,
        tokenizers=TokenizerPool(model.tokenizer, ends=model.end_of_text_ids),
        metrics=Metrics(lambda: worker.figures),
        admission=Admission(config.limits.max_requests),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await serving.tokenizers.warm()
        yield
        await worker.stop()
        serving.tokenizers.close()

    app = FastAPI(
        title="setblock", version=version("setblock"), lifespan=lifespan, docs_url=None, redoc_url=None,
        description="OpenAI's API, decoded in blocks. Parameters and fields beyond OpenAI's are this server's own.",
    )  # fmt: skip
    app.state.serving = serving
    for routes in (api, operations, page):
        app.include_router(routes)
    for kind in (RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _response_to)
    # From the inside out
    app.add_middleware(
        AccessControl,
        hosts=host_patterns(config.hosts),
        origins=config.origins,
        keys=config.keys,
        admission=serving.admission,
        limits=config.limits,
    )
    if config.origins:  # answers the preflight requests of browsers
        methods = ["GET", "POST"]
        app.add_middleware(CORSMiddleware, allow_origins=config.origins, allow_methods=methods, allow_headers=["*"])
    app.add_middleware(RequestLog, metrics=serving.metrics)
    return app


async def _response_to(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response()
    if isinstance(error, RequestValidationError):
        return from_validation(error.errors()).response()
    if not isinstance(error, HTTPException):
        return ApiError(500, "the server made a mistake; its log has more").response()
    messages = {
        400: "the body must be JSON in UTF-8, neither deep nor with numbers of thousands of digits",  # FastAPI's only one
        404: f"there is nothing at {request.url.path}: ask /v1/chat/completions or /v1/completions",
        405: f"{request.url.path} has no {request.method}",
    }
    message = messages.get(error.status_code, str(error.detail))
    code = "invalid_json" if error.status_code == 400 else None
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a bound socket, and its address as a browser opens it. Port 0 stands for any free port. Raise `SetBlockError` if
    the address can't be used."""
    is_ipv6 = ":" in host
    bound = socket.socket(socket.AF_INET6 if is_ipv6 else socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((host, port))
    except (OSError, OverflowError) as error:
        bound.close()
        raise SetBlockError(f"can't listen on {host} port {port}: {error}; choose another --port or --host") from error
    return bound, f"http://{f'[{host}]' if is_ipv6 else host}:{bound.getsockname()[1]}"


def serve(
    model: LanguageModel, config: ServerConfig, bound: socket.socket, *, log_level: str, on_start: Callable[[], None]
) -> int:
    """Serve until SIGTERM or SIGINT. The first signal lets running requests finish; a second one stops at once. `on_start` is
    called once the server listens. Return the exit code: 1 if the engine has failed, else 0."""
    _allow_many_files()
    log_to_stderr(log_level)
    app = create_app(model, config)
    serving: Serving = app.state.serving
    server = _Server(app, on_start=on_start)
    server.run(sockets=[bound])
    code = 1 if serving.worker.failure is not None else 0
    if server.force_exit:
        os._exit(code)  # Python itself would wait for the pass that is being made
    return code


class _Server(uvicorn.Server):
    """A Uvicorn server that on a signal first finishes running requests, and answers 503 to new ones."""

    def __init__(self, app: FastAPI, *, on_start: Callable[[], None]) -> None:
        self._serving: Serving = app.state.serving
        self._on_start = on_start
        connection: Any = partial(Connection, limits=self._serving.config.limits)
        super().__init__(
            uvicorn.Config(
                app, http=connection, log_config=None, access_log=False, server_header=False, timeout_keep_alive=30,
                timeout_graceful_shutdown=5, ws="none", lifespan="on", h11_max_incomplete_event_size=64 * 1024,
            )
        )  # fmt: skip
        self._deadline: float  # of running requests, by `time.monotonic()`, once the signal has come

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn, which calls this in the main thread on SIGINT or SIGTERM."""
        if self._serving.admission.is_closed:
            self.should_exit = self.force_exit = True
            return
        self._deadline = time.monotonic() + self._serving.config.limits.drain_seconds
        self._serving.admission.is_closed = True
        logger.info("draining", extra={"fields": {"signal": signal.Signals(sig).name}})

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn, which calls this ten times a second, and shuts down if it returns True."""
        admission, worker = self._serving.admission, self._serving.worker
        if admission.is_closed and (not admission.active or time.monotonic() >= self._deadline):
            logger.info("drained", extra={"fields": {"unfinished_requests": admission.active}})
            await worker.stop()  # unfinished requests get an error
            return True
        return worker.failure is not None or await super().on_tick(counter)


def _allow_many_files() -> None:
    """Raise this process's limit of open files, and so of connections, as far as the system allows, up to 65536."""
    try:
        import resource
    except ImportError:  # as on Windows
        return
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
    if least < wanted:
        with suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
