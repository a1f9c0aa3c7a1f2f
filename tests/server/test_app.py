"""The server as a process: it ends on a signal or when its engine has failed, after requests in progress."""

import json
import threading
from functools import partial

import httpx2 as httpx
import pytest
import uvicorn

from server.live import LONG, TIMEOUT, eventually, parts, serving
from server.test_parameters import error_of
from setblock.server.http.limits import ServerLimits


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
