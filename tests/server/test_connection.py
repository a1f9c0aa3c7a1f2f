"""Connections of clients that are slow to send the head of a request or to read an answer, or that leave."""

import asyncio
import socket
from functools import partial

import pytest
import uvicorn
from uvicorn.server import ServerState

from server.live import LONG, ask, connect, eventually, idle, serving
from setblock.server.http.connection import Connection
from setblock.server.http.limits import ServerLimits


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_leaves_frees_its_place(live, stream):
    before = live.passes
    with connect(live) as connection:
        ask(connection, {**LONG, "stream": stream, "n": 2})
        assert eventually(lambda: live.passes > before + 1)
    assert eventually(lambda: idle(live))
    assert live.passes < before + 250


def test_a_slow_reader_holds_nobody_up(live):
    with connect(live) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        ask(connection, {**LONG, "events": True, "logprobs": True, "top_logprobs": 20})
        assert live.chat(max_tokens=4).status_code == 200
        assert eventually(lambda: live.serving.worker.figures.running == 0)  # the engine waits for no reader
    assert eventually(lambda: idle(live))


@pytest.mark.parametrize("sent", [b"", b"GET /health HTTP/1.1\r\nHost: loc", b"whole"])
def test_a_head_that_never_ends_is_given_up(served_model, sent):
    with serving(served_model, limits=ServerLimits(body_seconds=1.0)) as live, connect(live) as connection:
        if sent == b"whole":  # and half a head behind it
            connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answer = b""
            while b'"ok"}' not in answer:
                more = connection.recv(4096)
                assert more, answer
                answer += more
            sent = b"GET /"
        connection.sendall(sent)
        assert connection.recv(4096) == b""


def test_an_answer_takes_longer_than_a_head_may(served_model):
    with serving(served_model, limits=ServerLimits(body_seconds=0.05)) as live:
        assert live.chat(max_tokens=250, method="ntp", banned_tokens=[0]).status_code == 200


def test_who_does_not_read_an_answer_is_left():
    """A whole answer is in the connection at once, and the keep-alive limit waits until it has been sent."""

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % (32 << 20))]})
        await send({"type": "http.response.body", "body": bytes(32 << 20)})

    async def main():
        config, state = uvicorn.Config(app, ws="none", log_config=None), ServerState()
        made = partial(Connection, config, state, {}, limits=ServerLimits(request_seconds=0.1))
        server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            client.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            async with asyncio.timeout(10):  # were it never left, this would be the end
                while not state.total_requests or state.connections:
                    await asyncio.sleep(0.01)
        server.close()

    asyncio.run(main())
