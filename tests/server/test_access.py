"""Who may send requests, how many at once, and bodies that are too large or too slow."""

import asyncio
import json
from contextlib import ExitStack

import pytest

from server.live import LONG, ask, connect, eventually, idle, serving
from server.test_parameters import error_of
from setblock.errors import SetBlockError
from setblock.server.http.access import AccessControl, Admission, Bodies, Keys, host_patterns, origins_of
from setblock.server.http.errors import ApiError
from setblock.server.http.limits import ServerLimits

HALF_BODY = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"


def test_a_large_body_is_refused_and_the_next_one_is_not(live):
    response = live.chat("x" * (10 << 20))
    assert error_of(response, 413)["code"] == "request_too_large"
    chunked = live.client.post("/v1/completions", content=(b"x" * 65536 for _ in range(40)))
    error_of(chunked, 413)
    assert live.chat(max_tokens=2).status_code == 200


def test_a_body_that_never_ends_is_given_up(served_model):
    with serving(served_model, limits=ServerLimits(body_seconds=0.2)) as live, connect(live) as connection:
        connection.sendall(HALF_BODY)
        assert connection.recv(4096).startswith(b"HTTP/1.1 408")
        assert eventually(lambda: idle(live))


def test_a_client_that_leaves_within_its_body_is_forgotten():
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]

    async def receive():
        return messages.pop(0)

    bodies = Bodies(1, ServerLimits())
    with pytest.raises(ApiError, match="the client has left"):
        asyncio.run(bodies.read(receive))
    assert not bodies._unfinished


def test_bodies_that_never_end_keep_nobody_out(served_model):
    """They take no place; of those beyond the bound, the slowest gives way."""
    with serving(served_model, limits=ServerLimits(max_requests=2)) as live, ExitStack() as open_ones:
        halves = [open_ones.enter_context(connect(live)) for _ in range(5)]
        for each in halves:
            each.sendall(HALF_BODY)
            assert live.chat(max_tokens=2).status_code == 200
        *slowest, last = halves
        for each in slowest:
            assert each.recv(4096).startswith(b"HTTP/1.1 408")
        last.setblocking(False)
        with pytest.raises(BlockingIOError):
            last.recv(1)


def test_only_so_many_requests_at_once(served_model):
    with serving(served_model, limits=ServerLimits(max_requests=1)) as live:
        with connect(live) as connection:
            ask(connection, LONG)
            assert eventually(lambda: live.serving.admission.active == 1)
            assert error_of(live.chat(), 429)["type"] == "rate_limit_error"
            assert live.client.get("/v1/models").status_code == 200
        assert eventually(lambda: idle(live))
        assert live.chat(max_tokens=2).status_code == 200


def test_host_names_are_names_or_patterns():
    assert host_patterns(("localhost", "*.example.com")) == ["localhost", "*.example.com"]
    assert host_patterns(()) == ["*"]
    for wrong in ("a*b", "*example.com", "a.*"):
        with pytest.raises(SetBlockError, match="an allowed host must be a name or a pattern such as"):
            host_patterns((wrong,))


@pytest.mark.parametrize(
    ("host", "is_known"),
    [
        ("Me.example:80", True), ("me.example.", False), ("a.example.com", True), ("A.B.EXAMPLE.com:1", True),
        ("example.com", False), ("evilexample.com", False), ("example.com.evil", False), (":80", False),
    ],
)  # fmt: skip
def test_host_names_are_compared_without_case_and_port(host, is_known):
    reached = []

    async def app(*_: object) -> None:
        reached.append(True)

    async def send(_: object) -> None:
        pass

    hosts = host_patterns(("ME.example", "*.Example.com"))
    control = AccessControl(app, hosts=hosts, keys=Keys([]), admission=Admission(1), limits=ServerLimits())
    scope = {"type": "http", "method": "GET", "path": "/health", "headers": [(b"host", host.encode())]}
    asyncio.run(control(scope, None, send))
    assert bool(reached) is is_known


def test_other_host_names_are_refused(live):
    for host, status in (("evil.example", 400), ("localhost:1", 200), ("[::1]:80", 200), ("127.0.0.1", 200), ("", 400)):
        response = live.client.get("/v1/models", headers={"host": host})
        assert response.status_code == status
        if status == 400:
            message = f"this server does not answer to the host name {host!r}: --allowed-host allows it"
            assert error_of(response) == {
                "message": message, "type": "invalid_request_error", "param": None, "code": "invalid_host",
            }  # fmt: skip


def test_a_simple_request_of_another_site_s_page_is_refused(live):
    body = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Tom"}]})
    for kind in ("text/plain", "application/x-www-form-urlencoded"):
        response = live.client.post("/v1/chat/completions", content=body, headers={"content-type": kind})
        assert response.status_code == 400
        assert "send the header Content-Type: application/json" in response.json()["error"]["message"]


def test_a_page_of_another_origin_is_refused(live):
    """By the header that browsers send with it, whatever else it sends. The playground's own origin is none of them."""
    own, body = live.url, {"model": "tiny", "messages": [{"role": "user", "content": "Tom"}], "max_tokens": 2}
    other = ("http://evil.example", "https://evil.example", "null", f"{own}0", own.replace("127.0.0.1", "localhost"))
    for origin, status in ((own, 200), *((each, 403) for each in other)):
        for response in (
            live.client.post("/v1/chat/completions", json=body, headers={"origin": origin}),
            live.client.get("/v1/models", headers={"origin": origin}),
        ):
            assert response.status_code == status, origin
            assert "access-control-allow-origin" not in response.headers
    assert error_of(response, 403)["code"] == "invalid_origin"


def test_an_origin_may_be_allowed(served_model):
    with serving(served_model, origins=["https://ours.example"], keys=Keys(["a-long-key"])) as live:
        requested = {"access-control-request-method": "POST", "access-control-request-headers": "authorization"}
        for origin, is_allowed in (("https://ours.example", True), ("https://evil.example", False)):
            headers = {"origin": origin}
            first = live.client.options("/v1/chat/completions", headers={**headers, **requested})
            response = live.client.get("/v1/models", headers={**headers, "authorization": "Bearer a-long-key"})
            assert response.status_code == (200 if is_allowed else 403)
            for each in (first, response):
                assert (each.headers.get("access-control-allow-origin") == origin) is is_allowed
    assert origins_of(["HTTPS://Ours.example", "*"]) == ["https://ours.example", "*"]
    for wrong in ("ours.example", "https://ours.example/page", "https://"):
        with pytest.raises(SetBlockError, match="an allowed origin must be like"):
            origins_of([wrong])
