"""Build the server as an ASGI application: routes, middleware, and the handling of errors."""

import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.metadata import version

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from setblock.decoding.samplers import SAMPLERS, EntropyPrefix
from setblock.decoding.samplers.named import parameters_of
from setblock.decoding.settings.table import METHODS
from setblock.engine.engine import Engine
from setblock.model.protocol.runtime import LanguageModel
from setblock.server.api.routes import api, operations, page
from setblock.server.codec import Codec
from setblock.server.http.access import AccessControl, Admission, host_patterns
from setblock.server.http.errors import ApiError, from_validation
from setblock.server.http.logs import Account, RequestLog
from setblock.server.http.metrics import Metrics
from setblock.server.serving import ServerConfig, Serving
from setblock.server.worker import Worker


def create_app(model: LanguageModel, config: ServerConfig) -> FastAPI:
    """Return the application. `app.state.serving` is what it serves."""
    worker = Worker(Engine(model, config.engine))
    facts = {
        "methods": [each for each in METHODS if model.facts or each != "sbd"],
        "samplers": {name: parameters_of(name) for name in SAMPLERS},
        "block_sizes": list(model.facts.block_sizes if model.facts else ()),
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
            "setblock": facts,
        },
        room=min(filter(None, (model.context_length, worker.figures.kv_tokens_total))),
        worker=worker,
        codec=Codec(model.tokenizer),
        metrics=Metrics(lambda: worker.figures),
        admission=Admission(config.limits.max_requests),
    )

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        await serving.codec.warm()
        yield
        await worker.stop()
        serving.codec.close()

    def count(scope: Scope, status: int, account: Account) -> None:
        found = scope.get("route")
        route = found.path if isinstance(found, APIRoute) else "other"
        serving.metrics.requests.labels(route, status).inc()
        serving.metrics.request_seconds.labels(route).observe(account.seconds)

    app = FastAPI(
        title="setblock", version=version("setblock"), lifespan=lifespan, docs_url=None, redoc_url=None,
        description="OpenAI's API, decoded in blocks. Parameters and fields beyond OpenAI's are this server's own.",
    )  # fmt: skip
    app.state.serving = serving
    for routes in (api, operations, page):
        app.include_router(routes)
    for kind in (RequestValidationError, HTTPException, Exception):
        app.add_exception_handler(kind, _response_to)
    # From the inside out.
    hosts, admission = host_patterns(config.hosts), serving.admission
    app.add_middleware(AccessControl, hosts=hosts, keys=config.keys, admission=admission, limits=config.limits)
    app.add_middleware(RequestLog, on_done=count)
    return app


async def _response_to(request: Request, error: Exception) -> Response:
    if isinstance(error, ApiError):
        return error.response()
    if isinstance(error, RequestValidationError):
        return from_validation(error.errors()).response()
    if not isinstance(error, HTTPException):
        return ApiError(500, "the server made a mistake; its log has more").response()
    told = {
        400: "the body must be JSON in UTF-8, neither deep nor with numbers of thousands of digits",  # FastAPI's only one
        404: f"there is nothing at {request.url.path}: ask /v1/chat/completions or /v1/completions",
        405: f"{request.url.path} has no {request.method}",
    }
    message = told.get(error.status_code, str(error.detail))
    code = "invalid_json" if error.status_code == 400 else None
    return ApiError(error.status_code, message, code=code, headers=error.headers).response()
