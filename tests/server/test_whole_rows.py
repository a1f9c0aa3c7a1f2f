"""A model whose requests can't be packed behind the server: its answers are those of `generate`, alone and with others."""

import copy
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from server.live import TEMPLATE, Live, serving
from setblock.engine.generate import generate
from setblock.engine.limits import EngineLimits

MOST = 100  # tokens of a request
PROMPTS = ("Ada has 3", "Tom", "Lena buys 4 bags of 6 pears each and", "Ivan gives away 2 of them.")


@pytest.fixture(scope="module")
def live(trained_tokenizer: PreTrainedTokenizerBase) -> Iterator[Live]:
    """With cache for three requests at once."""
    tokenizer = copy.deepcopy(trained_tokenizer)
    tokenizer.chat_template = TEMPLATE
    sbd = tiny_sbd("falcon", tokenizer, dtype=torch.float64)
    assert sbd.needs_whole_rows
    with serving(sbd, engine=EngineLimits(kv_tokens=3 * MOST + 1, max_model_len=MOST)) as running:
        yield running


def test_completions_together(live: Live) -> None:
    """More than there are rows, of all methods."""
    requests: list[dict[str, Any]] = [
        {"prompt": prompt, "method": method, "max_tokens": 10 + 7 * place}
        for place, prompt in enumerate(PROMPTS)
        for method in ("exact", "ntp", "sbd")
    ]

    def answer(body: dict[str, Any]) -> str:
        response = live.post("/v1/completions", **body)
        assert response.status_code == 200, response.text
        text: str = response.json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(len(requests)) as pool:
        texts = list(pool.map(answer, requests))
    for body, text in zip(requests, texts, strict=True):
        settings: dict[str, Any] = {"method": body["method"], "max_new_tokens": body["max_tokens"]}
        assert text == generate(live.model, body["prompt"], raw=True, **settings).text


def test_a_request_that_is_longer_than_a_row(live: Live) -> None:
    response = live.post("/v1/completions", prompt="Tom", max_tokens=MOST)
    assert response.status_code == 400
    assert f"this engine's limit is {MOST}" in response.json()["error"]["message"]
    assert "enlarge max_model_len" in response.json()["error"]["message"]
    usage = live.post("/v1/completions", prompt="Tom", banned_tokens=[0]).json()["usage"]  # all the room that there is
    assert usage["total_tokens"] <= MOST
