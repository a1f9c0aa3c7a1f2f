"""What clients and models do wrong, and that it hurts nobody else."""

import asyncio
import json
import logging
import socket
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from functools import partial
from urllib.parse import urlsplit

import httpx2 as httpx
import pytest
import torch
import uvicorn
from prometheus_client.parser import text_string_to_metric_families
from uvicorn.server import ServerState

from server.live import TIMEOUT, eventually, parts, serving, tiny
from server.test_parameters import error_of
from setblock.decoding.answer.text import encode_prompt
from setblock.engine.limits import EngineLimits
from setblock.errors import SetBlockError
from setblock.server.http.access import AccessControl, Admission, Bodies, Keys, host_patterns, origins_of
from setblock.server.http.connection import Connection
from setblock.server.http.errors import ApiError
from setblock.server.http.limits import ServerLimits
from setblock.server.http.logs import JsonLines, log_to_stderr

pytestmark = pytest.mark.usefixtures("longest_drafts")

LOGGERS = (None, "setblock", "uvicorn", "transformers")
LONG = {"max_tokens": 250, "method": "ntp", "banned_tokens": [0], "stream": True}


def idle(live):
    figures = live.serving.worker.figures
    return figures.running == figures.waiting == live.serving.admission.active == 0


def connect(live):
    address = urlsplit(live.url)
    return socket.create_connection((address.hostname, address.port), timeout=TIMEOUT)


def ask(connection, body, path="/v1/chat/completions"):
    content = json.dumps({"model": "tiny", "messages": [{"role": "user", "content": "Tom"}], **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    connection.sendall(f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content)


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


HALF_BODY = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{"


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


def test_a_short_prompt_waits_for_no_long_one(live, monkeypatch):
    entered, release, was_released = threading.Event(), threading.Event(), []

    def slow(tokenizer, prompt, **named):
        if len(prompt) > 100_000:
            entered.set()
            was_released.append(release.wait(TIMEOUT / 2))
        return encode_prompt(tokenizer, "Tom", raw=True)

    monkeypatch.setattr("setblock.server.tokenizer_pool.encode_prompt", slow)
    with ThreadPoolExecutor(1) as other:
        long = other.submit(live.post, "/v1/completions", prompt="word " * 100_000, max_tokens=2)
        assert entered.wait(TIMEOUT)
        assert live.post("/v1/completions", prompt="Tom has", max_tokens=2).status_code == 200
        release.set()
        assert long.result().status_code == 200
    assert was_released == [True]


def test_names_of_special_tokens_are_plain_text(live):
    special = live.model.tokenizer.all_special_tokens
    assert special
    for token in special:
        for path, body in (
            ("/v1/completions", {"prompt": f"Tom {token} has"}),
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": f"Tom {token} has"}]}),
        ):
            tokenizers = live.serving.tokenizers
            encoded = (
                tokenizers.encode_text(body["prompt"]) if "prompt" in body else tokenizers.encode_chat(body["messages"])
            )
            ids = asyncio.run(encoded)
            assert not set(ids) & set(live.model.tokenizer.all_special_ids)
            assert live.post(path, **body, max_tokens=4).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_a_model_whose_logits_are_no_numbers(trained_tokenizer, stream):
    broken = tiny(trained_tokenizer)
    with torch.no_grad():
        broken.model.model.norm.weight.fill_(float("nan"))
    with serving(broken) as live:
        response = live.chat(stream=stream)
        if stream:
            (error,) = json.loads(parts(response)[-1]).values()
        else:
            error = error_of(response, 500)
        assert (error["type"], error["code"]) == ("server_error", "model_failed")
        assert live.client.get("/health").status_code == 200
        assert eventually(lambda: idle(live))


def test_a_full_queue_says_come_back(served_model):
    with serving(served_model, engine=EngineLimits(max_num_seqs=1, max_waiting=1)) as live:
        with connect(live) as first, connect(live) as second:
            ask(first, LONG)
            assert eventually(lambda: live.serving.worker.figures.running == 1)
            ask(second, LONG)
            assert eventually(lambda: live.serving.worker.figures.waiting == 1)
            response = live.chat()
            assert error_of(response, 429)["code"] == "rate_limit_exceeded"
            assert int(response.headers["retry-after"]) >= 1
        assert eventually(lambda: idle(live))
        assert live.chat(max_tokens=2).status_code == 200


def test_only_so_many_requests_at_once(served_model):
    with serving(served_model, limits=ServerLimits(max_requests=1)) as live:
        with connect(live) as connection:
            ask(connection, LONG)
            assert eventually(lambda: live.serving.admission.active == 1)
            assert error_of(live.chat(), 429)["type"] == "rate_limit_error"
            assert live.client.get("/v1/models").status_code == 200
        assert eventually(lambda: idle(live))
        assert live.chat(max_tokens=2).status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long(served_model, stream):
    with serving(served_model, limits=ServerLimits(request_seconds=0.05)) as live:
        response = live.chat(**{**LONG, "stream": stream})
        error = json.loads(parts(response)[-1])["error"] if stream else error_of(response, 504)
        assert error["code"] == "timeout"
        assert eventually(lambda: idle(live))


def test_sigterm_lets_running_requests_finish_and_refuses_new_ones(served_model):
    with serving(served_model, limits=ServerLimits(drain_seconds=TIMEOUT)) as live:
        got = []
        reader = threading.Thread(target=lambda: got.append(live.chat(**LONG)))
        reader.start()
        assert eventually(lambda: live.serving.worker.figures.running == 1)
        live.sigterm()
        refused = httpx.post(f"{live.url}/v1/completions", json={"model": "tiny", "prompt": "a"}, timeout=TIMEOUT)
        ready = httpx.get(f"{live.url}/ready", timeout=TIMEOUT)
        assert live.serving.admission.active == 1, "the answer was too short for this test"
        assert error_of(refused, 503)["type"] == "server_error"
        assert "retry-after" in refused.headers
        assert ready.status_code == 503
        reader.join(TIMEOUT)
        assert parts(got[0])[-1] == "[DONE]"
        live.thread.join(TIMEOUT)
        assert not live.thread.is_alive()


def test_what_does_not_finish_in_time_is_reported(served_model):
    with serving(served_model, limits=ServerLimits(drain_seconds=0.05)) as live:
        got = []
        reader = threading.Thread(target=lambda: got.append(live.chat(**LONG)))
        reader.start()
        assert eventually(lambda: live.serving.worker.figures.running == 1)
        live.sigterm()
        reader.join(TIMEOUT)
        last = parts(got[0])[-1]
        assert last == "[DONE]" or json.loads(last)["error"]["code"] == "unavailable"
        live.thread.join(TIMEOUT)
        assert not live.thread.is_alive()


def test_a_dead_engine_shows(served_model, monkeypatch):
    with serving(served_model) as live:
        engine = live.serving.worker._engine

        def break_down():
            raise RuntimeError("out of memory")

        monkeypatch.setattr(engine, "step", break_down)
        monkeypatch.setattr(live.server, "on_tick", partial(uvicorn.Server.on_tick, live.server))  # it would end
        assert error_of(live.chat(), 500)["code"] == "engine_failed"
        assert live.client.get("/health").status_code == 500
        assert live.client.get("/ready").status_code == 503


class Panic(BaseException):
    """What a library written in Rust raises where it breaks."""


@pytest.mark.parametrize("fault", [RuntimeError("out of memory"), Panic()], ids=["error", "panic"])
def test_a_server_whose_engine_died_ends(served_model, monkeypatch, fault):
    with serving(served_model) as live:

        def break_down():
            raise fault

        monkeypatch.setattr(live.serving.worker._engine, "step", break_down)
        assert error_of(live.chat(), 500)["code"] == "engine_failed"
        live.thread.join(TIMEOUT)
        assert not live.thread.is_alive()


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


def test_metrics_count_what_was_done(served_model):
    with serving(served_model) as live:
        usage = live.chat(max_tokens=20, method="sbd", gamma=0.5).json()["usage"]
        live.chat(temperature=-1)
        live.client.get("/no/such/page")
        families = text_string_to_metric_families(live.client.get("/metrics").text)
        found = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    assert found["setblock_generated_tokens_total",] == usage["completion_tokens"]
    assert found["setblock_answer_forwards_total",] == usage["num_forwards"]
    assert found["setblock_prompt_tokens_total",] == usage["prompt_tokens"]
    assert found["setblock_passes_total",] == usage["num_forwards"]
    assert found["setblock_time_to_first_token_seconds_count",] == 1
    assert found["setblock_revealed_tokens_per_pass_sum",] >= usage["completion_tokens"]
    assert found["setblock_tokens_per_forward_count", "sbd"] == 1
    assert found["setblock_http_requests_total", "/v1/chat/completions", "200"] == 1
    assert found["setblock_http_requests_total", "/v1/chat/completions", "400"] == 1
    assert found["setblock_http_requests_total", "other", "404"] == 1
    assert found["setblock_running_requests",] == 0


def test_metrics_count_what_drafts_gave(served_model):
    with serving(served_model) as live:
        usage = live.chat(max_tokens=40, method="exact", drafts="fixed").json()["usage"]
        families = text_string_to_metric_families(live.client.get("/metrics").text)
        found = {(each.name, *each.labels.values()): each.value for family in families for each in family.samples}
    drafted, accepted = usage["num_drafted_tokens"], usage["num_accepted_tokens"]
    assert drafted > accepted >= 0
    assert found["setblock_draft_tokens_total",] == drafted
    assert found["setblock_accepted_tokens_total",] == accepted
    assert found["setblock_wasted_tokens_total",] == drafted - accepted
    assert accepted >= usage["completion_tokens"] - usage["num_forwards"]  # each pass gives one token more


@contextmanager
def logged():
    """The lines of the requests that are answered meanwhile, as objects."""
    lines = []

    class Keep(logging.Handler):
        def emit(self, record):
            lines.append(json.loads(JsonLines().format(record)))

    handler, logger = Keep(), logging.getLogger("setblock.server")
    level = logger.level
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)
        logger.setLevel(level)


def of_chats(lines):
    return [line for line in lines if line.get("path") == "/v1/chat/completions"]


@pytest.mark.parametrize("stream", [True, False])
def test_a_cancelled_answer_is_logged_with_its_tokens(served_model, stream):
    with logged() as lines, serving(served_model) as live:
        with connect(live) as connection:
            ask(connection, {**LONG, "stream": stream, "n": 2})
            assert eventually(lambda: live.passes > 20)
        assert eventually(lambda: bool(of_chats(lines)))
    (line,) = of_chats(lines)
    assert line["finish_reasons"] == ["cancelled", "cancelled"]
    assert 20 <= line["num_forwards"] <= 2 * live.passes
    assert line["completion_tokens"] == line["num_forwards"]  # of method `ntp`
    assert line["prompt_tokens"] > 0
    assert line["status"] == (200 if stream else 499)


def test_the_tokens_of_a_cancelled_answer_are_those_of_its_text(served_model):
    with logged() as lines, serving(served_model) as live, connect(live) as connection:
        ask(connection, {**LONG, "method": "exact", "temperature": 1.0, "seed": 3, "events": True})
        assert eventually(lambda: live.passes > 20)
        connection.shutdown(socket.SHUT_RDWR)
        assert eventually(lambda: bool(of_chats(lines)))
        whole = live.chat(**{**LONG, "method": "exact", "temperature": 1.0, "seed": 3, "stream": False}).json()
    cancelled = of_chats(lines)[0]
    assert 0 < cancelled["completion_tokens"] <= whole["usage"]["completion_tokens"]
    assert 0 < cancelled["num_forwards"] <= whole["usage"]["num_forwards"]


def test_why_a_stream_failed_is_logged(served_model):
    with logged() as lines, serving(served_model, limits=ServerLimits(request_seconds=0.05)) as live:
        live.chat(**LONG)
    (line,) = of_chats(lines)
    assert (line["status"], line["error"], line["finish_reasons"]) == (200, "timeout", ["cancelled"])


def test_all_that_is_logged_is_json(capfd):
    before = [(each, each.handlers, each.level, each.propagate) for each in map(logging.getLogger, LOGGERS)]
    try:
        logging.getLogger("transformers").setLevel(logging.WARNING)  # whatever another test has left
        log_to_stderr("info")
        logging.getLogger("setblock.server").info("ours")
        logging.getLogger("uvicorn.error").warning("uvicorn's")
        logging.getLogger("asyncio").warning("socket.send() raised exception.")
        logging.getLogger("asyncio").warning("asyncio's")
        logging.getLogger("transformers.generation").warning("of a library")
        logging.getLogger("transformers.generation").info("nobody asked")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("a warning", UserWarning, stacklevel=1)
    finally:
        logging.captureWarnings(False)
        logging.getLogger("asyncio").filters.clear()
        for each, handlers, level, propagate in before:
            each.handlers, each.propagate = handlers, propagate
            each.setLevel(level)
    events = [json.loads(line)["event"] for line in capfd.readouterr().err.splitlines()]
    assert events[:4] == ["ours", "uvicorn's", "asyncio's", "of a library"]
    assert "a warning" in events[4]
    assert len(events) == 5


@pytest.mark.parametrize("logs_text", [False, True])
def test_logs_hold_text_only_where_requested(served_model, logs_text):
    with logged() as lines, serving(served_model, logs_text=logs_text) as live:
        reply = live.chat("a secret of Tom's", max_tokens=20)
    (line,) = of_chats(lines)
    text = reply.json()["choices"][0]["message"]["content"]
    assert line["id"] == reply.headers["x-request-id"]
    assert (line["status"], line["completion_tokens"]) == (200, reply.json()["usage"]["completion_tokens"])
    assert ("a secret of Tom's" in json.dumps(line)) == logs_text
    assert (line.get("answers") == [text]) == logs_text
