"""Run the server as a process, which on a signal to stop finishes the requests that it has begun."""

import contextlib
import logging
import os
import signal
import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn

from setblock.errors import SetBlockError
from setblock.model.protocol.runtime import LanguageModel
from setblock.server.app import create_app
from setblock.server.http.logs import log_to_stderr
from setblock.server.serving import ServerConfig, Serving

logger = logging.getLogger("setblock.server")


def listen(host: str, port: int) -> tuple[socket.socket, str]:
    """Return a bound socket, and its address as a browser opens it, or raise `SetBlockError`. Port 0 is any that is free."""
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
    """Serve until asked to stop, by SIGTERM or SIGINT; a second one stops at once. `on_start` is called once it listens.
    Return the exit code: 1 where the engine died."""
    _allow_many_files()
    log_to_stderr(log_level)
    app = create_app(model, config)
    serving: Serving = app.state.serving
    server = _Server(
        uvicorn.Config(
            app, log_config=None, access_log=False, server_header=False, timeout_keep_alive=30,
            timeout_graceful_shutdown=5, ws="none", lifespan="on", h11_max_incomplete_event_size=64 * 1024,
        ),
        serving=serving,
        on_start=on_start,
    )  # fmt: skip
    server.run(sockets=[bound])
    code = 1 if serving.worker.failure is not None else 0
    if server.force_exit:
        os._exit(code)  # Python itself would wait for the pass that is being made
    return code


class _Server(uvicorn.Server):
    """Run Uvicorn, which on a signal first finishes what runs, and answers 503 to what is new."""

    def __init__(self, config: uvicorn.Config, *, serving: Serving, on_start: Callable[[], None]) -> None:
        super().__init__(config)
        self._serving, self._on_start = serving, on_start
        self._deadline: float  # of what runs, by `time.monotonic()`, once the signal has come

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self._on_start()

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See uvicorn; it calls this when SIGINT or SIGTERM comes, in the main thread."""
        if self._serving.admission.is_closed:
            self.should_exit = self.force_exit = True
            return
        self._deadline = time.monotonic() + self._serving.config.limits.drain_seconds
        self._serving.admission.is_closed = True
        logger.info("draining", extra={"fields": {"signal": signal.Signals(sig).name}})

    async def on_tick(self, counter: int) -> bool:
        """See uvicorn; it calls this ten times a second, and ends where it is true."""
        admission, worker = self._serving.admission, self._serving.worker
        if admission.is_closed and (not admission.active or time.monotonic() >= self._deadline):
            logger.info("drained", extra={"fields": {"unfinished_requests": admission.active}})
            await worker.stop()  # informs those who still wait
            return True
        return worker.failure is not None or await super().on_tick(counter)


def _allow_many_files() -> None:
    """Allow as many open connections as the system lets a process have: the usual 1024 files are few."""
    try:
        import resource
    except ImportError:  # as on Windows
        return
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 65536 if most == resource.RLIM_INFINITY else min(most, 65536)
    if least < wanted:
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))
