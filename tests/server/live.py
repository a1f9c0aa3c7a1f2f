"""A server that is really listening, in a thread of this process: what the tests of the API talk to."""

import asyncio
import copy
import json
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2 as httpx
import uvicorn
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.model.sbd_model import SBDModel
from setblock.server.app import _Server, create_app, listen
from setblock.server.serving import ServerConfig, Serving

TIMEOUT = 120.0
LONG: dict[str, Any] = {"max_tokens": 250, "method": "ntp", "banned_tokens": [0], "stream": True}
CONTEXT = 512
TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'system' and not loop.first %}"
    "{{ raise_exception('the system message comes first') }}{% endif %}"
    "{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}{{ 'assistant:' }}"
)


def tiny(tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    tokenizer = copy.deepcopy(tokenizer)
    tokenizer.chat_template = TEMPLATE
    return tiny_sbd("llama", tokenizer, mode="shifted", max_position_embeddings=CONTEXT)


@dataclass
class Live:
    """A running server."""

    url: str
    model: SBDModel
    serving: Serving
    server: uvicorn.Server
    thread: threading.Thread
    client: httpx.Client = field(init=False)

    def __post_init__(self) -> None:
        self.client = httpx.Client(base_url=self.url, timeout=TIMEOUT)

    def post(self, path: str, **body: Any) -> httpx.Response:
        return self.client.post(path, json={"model": self.serving.config.name, **body})

    def chat(self, text: str = "Tom has 12 apples.", **body: Any) -> httpx.Response:
        return self.post("/v1/chat/completions", messages=[{"role": "user", "content": text}], **body)

    def sigterm(self) -> None:
        """What the process does when the signal comes."""
        self.server.handle_exit(signal.SIGTERM, None)

    @property
    def passes(self) -> int:
        return self.serving.worker.figures.passes


@contextmanager
def serving(model: SBDModel, **config: Any) -> Iterator[Live]:
    bound, url = listen("127.0.0.1", 0)
    app = create_app(model, ServerConfig(**{"name": "tiny", **config}))
    started = threading.Event()
    server = _Server(app, on_start=started.set)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve(sockets=[bound])), daemon=True)
    thread.start()
    assert started.wait(TIMEOUT)
    live = Live(url, model, app.state.serving, server, thread)
    try:
        yield live
    finally:
        live.client.close()
        server.should_exit = True
        thread.join(TIMEOUT)
        bound.close()


def eventually(holds: Callable[[], bool], *, seconds: float = TIMEOUT) -> bool:
    """Whether something comes true in time, however slow the machine is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.01)
    return False


def parts(response: httpx.Response) -> list[str]:
    """The data of a stream's events."""
    return [event.removeprefix("data: ") for event in response.text.split("\n\n") if event]


def idle(live: Live) -> bool:
    """Whether nothing is running or waiting."""
    figures = live.serving.worker.figures
    return figures.running == figures.waiting == live.serving.admission.active == 0


def connect(live: Live) -> socket.socket:
    address = urlsplit(live.url)
    return socket.create_connection((address.hostname, address.port), timeout=TIMEOUT)


def ask(connection: socket.socket, body: dict[str, Any], path: str = "/v1/chat/completions") -> None:
    """Send a request whose answer is not read."""
    content = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Tom"}], **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)
