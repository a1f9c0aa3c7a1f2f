"""Try the faults that are too slow for the tests, on a live server; each must leave it serving. Exits with 1 if one
fails.

python benchmarks/faults.py
"""

import json
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from urllib.parse import urlsplit

import httpx2 as httpx
from rich.console import Console
from rich.table import Table

from measuring.hardware import resident_bytes
from server_process import ServerProcess, server_process

MESSAGES = [{"role": "user", "content": "Maya has 12 apples. Maya finds 7 more. How many apples does Maya have now?"}]
LONG = {"method": "ntp", "max_tokens": 900, "banned_tokens": [0], "stream": True}
SECONDS = 600.0
Fault = Callable[[ServerProcess], str]


def main() -> None:
    """Run all, print what came of each."""
    table = Table("fault", "held", "what was seen")
    held: list[bool] = []

    def run(fault: Fault, server: ServerProcess) -> None:
        try:
            seen, came_through = fault(server), True
        except AssertionError as error:
            seen, came_through = str(error), False
        held.append(came_through)
        table.add_row((fault.__doc__ or "").splitlines()[0], "yes" if came_through else "NO", seen)

    with server_process() as server:
        for fault in (half_requests, idle_connections, slow_readers, sigterm_under_load):
            run(fault, server)
    with server_process() as server:
        run(kill_and_restart, server)
    Console(width=160).print(table)
    sys.exit(not all(held))


def kill_and_restart(server: ServerProcess) -> str:
    """Kill -9 while it answers, then a start on the same port."""
    port = urlsplit(server.url).port
    streams = [started_stream(server.url) for _ in range(4)]
    code = server.stop(signal.SIGKILL)
    for stream in streams:
        stream.close()
    with server_process("--port", str(port)) as again:
        assert urlsplit(again.url).port == port, "it got another port"
        answer = whole_answer(again.url)
    return f"exit code {code}; the next process took the port at once and answered {answer!r}"


def idle_connections(server: ServerProcess) -> str:
    """Open 1,000 connections that say nothing."""
    address = urlsplit(server.url)
    idle = [socket.create_connection((address.hostname, address.port), timeout=SECONDS) for _ in range(1000)]
    before = resident_bytes(process=server.process.pid)
    answer = whole_answer(server.url)
    for connection in idle:
        connection.close()
    whole_answer(server.url)
    return f"answered {answer!r} beside them; {before / 2**20:.0f} MiB with them"


def sigterm_under_load(server: ServerProcess) -> str:
    """Send SIGTERM while eight requests run."""
    done: list[bool] = []
    streams = [started_stream(server.url) for _ in range(8)]

    def read_on(stream: httpx.Response) -> None:
        text = "".join(stream.iter_text())
        done.append(text.rstrip().endswith("data: [DONE]"))
        stream.close()

    readers = [threading.Thread(target=read_on, args=(stream,)) for stream in streams]
    for reader in readers:
        reader.start()
    server.process.send_signal(signal.SIGTERM)
    wait_for(lambda: httpx.get(f"{server.url}/ready", timeout=SECONDS).status_code == 503, "it never began to drain")
    refused = ask(server.url, stream=False)
    assert refused.status_code == 503, f"a new request got {refused.status_code}"
    for reader in readers:
        reader.join(SECONDS)
    code = server.process.wait(SECONDS)
    assert done == [True] * 8, f"{done.count(True)} of 8 answers were finished"
    assert code == 0, f"exit code {code}"
    return "8 of 8 answers finished, a new request got 503, exit code 0"


def slow_readers(server: ServerProcess) -> str:
    """Start 32 clients that read nothing of long streams."""
    address = urlsplit(server.url)
    body = json.dumps({"model": "word-problems", "messages": MESSAGES, **LONG, "events": True}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n"
    stuck = []
    for _ in range(32):
        connection = socket.socket()
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        connection.connect((address.hostname, address.port))
        connection.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        stuck.append(connection)
    answer = whole_answer(server.url)
    wait_for(lambda: server.figures()["setblock_running_requests"] == 0, "the engine waited for readers")
    memory = resident_bytes(process=server.process.pid)
    for connection in stuck:
        connection.close()
    return f"answered {answer!r} beside them; the engine waited for none; {memory / 2**20:.0f} MiB"


def half_requests(server: ServerProcess) -> str:
    """Send half a head, half a body, and garbage."""
    address = urlsplit(server.url)
    parts = (
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: loc",
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n{",
        b"\x16\x03\x01\x02\x00\x01\x00",
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"x" * 100_000,
    )
    held = []
    for part in parts * 10:
        connection = socket.create_connection((address.hostname, address.port), timeout=SECONDS)
        connection.sendall(part)
        held.append(connection)
    answer = whole_answer(server.url)
    for connection in held:
        connection.close()
    broken = [line for line in server.log_lines() if "traceback" in line]
    assert not broken, f"{len(broken)} tracebacks in the log"
    return f"answered {answer!r} beside {len(held)} of them; no traceback in the log"


def ask(url: str, **body: object) -> httpx.Response:
    """Return the answer to a chat."""
    request = {"model": "word-problems", "messages": MESSAGES, **body}
    return httpx.post(f"{url}/v1/chat/completions", json=request, timeout=SECONDS)


def whole_answer(url: str) -> str:
    """Return the last line of an answer, which the bundled model gets right."""
    response = ask(url, method="exact")
    assert response.status_code == 200, f"status {response.status_code}: {response.text}"
    text = str(response.json()["choices"][0]["message"]["content"])
    assert text.endswith("19"), f"a wrong answer: {text!r}"
    return text.splitlines()[-1]


def started_stream(url: str) -> httpx.Response:
    """Return a long stream that has begun."""
    client = httpx.Client(timeout=SECONDS)
    request = client.build_request(
        "POST", f"{url}/v1/chat/completions", json={"model": "word-problems", "messages": MESSAGES, **LONG}
    )
    response = client.send(request, stream=True)
    assert response.status_code == 200, f"status {response.status_code}"
    return response


def wait_for(holds: Callable[[], bool], otherwise: str) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + SECONDS
    while not holds():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


if __name__ == "__main__":
    main()
