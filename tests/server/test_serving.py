"""Requests that can't be answered: a full queue, the time limit, and a model whose logits are not numbers."""

import json

import pytest
import torch

from server.live import LONG, ask, connect, eventually, idle, parts, serving, tiny
from server.test_parameters import error_of
from setblock.engine.limits import EngineLimits
from setblock.server.http.limits import ServerLimits


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


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_takes_too_long(served_model, stream):
    with serving(served_model, limits=ServerLimits(request_seconds=0.05)) as live:
        response = live.chat(**{**LONG, "stream": stream})
        error = json.loads(parts(response)[-1])["error"] if stream else error_of(response, 504)
        assert error["code"] == "timeout"
        assert eventually(lambda: idle(live))
