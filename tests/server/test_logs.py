"""The log, one JSON object a line: what it has of a request, and what it leaves out."""

import json
import logging
import socket
import warnings
from contextlib import contextmanager

import pytest

from server.live import LONG, ask, connect, eventually, serving
from setblock.server.http.limits import ServerLimits
from setblock.server.http.logs import JsonLines, log_to_stderr

LOGGERS = (None, "setblock", "uvicorn", "transformers")


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
    requested = {**LONG, "method": "exact", "drafts": "fixed", "temperature": 1.0, "seed": 3}
    with logged() as lines, serving(served_model) as live, connect(live) as connection:
        ask(connection, {**requested, "events": True})
        assert eventually(lambda: live.passes > 20)
        connection.shutdown(socket.SHUT_RDWR)
        assert eventually(lambda: bool(of_chats(lines)))
        whole = live.chat(
            **{**LONG, "method": "exact", "drafts": "fixed", "temperature": 1.0, "seed": 3, "stream": False}
        ).json()
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
