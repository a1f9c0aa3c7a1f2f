"""A model with a recurrent state behind the server: its answers are those of plain decoding, alone and with others."""

import copy
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from transformers import PreTrainedTokenizerBase

from families import tiny_model
from server.live import CONTEXT, TEMPLATE, Live, parts, serving
from setblock.engine.generate import generate
from setblock.model.sbd_model import SBDModel

NEW = 40  # tokens; more than are fed again at most
PROMPTS = ("Ada has 3", "Tom", "Lena buys 4 bags of 6 pears each and", "Ivan gives away 2 of them.")


@pytest.fixture(scope="module", params=["lfm2", "qwen3_next"])
def live(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> Iterator[Live]:
    tokenizer = copy.deepcopy(trained_tokenizer)
    tokenizer.chat_template = TEMPLATE
    model = tiny_model(request.param, vocab_size=len(tokenizer), initializer_range=0.2, max_position_embeddings=CONTEXT)
    sbd = SBDModel(model, tokenizer)
    sbd.prepare_for_training(block_sizes=[8], logit_shift=True, causal_block=True)
    with serving(sbd) as running:
        yield running


def wanted(live: Live, prompt: str) -> str:
    """The text of plain decoding."""
    return generate(live.model, prompt, method="ntp", max_new_tokens=NEW, raw=True).text


def test_completions_together(live: Live) -> None:
    """Of both exact methods at once, and of blocks, which may be another text."""
    requests = [(prompt, method) for prompt in PROMPTS for method in ("exact", "ntp", "sbd")]

    def answer(request: tuple[str, str]) -> str:
        prompt, method = request
        response = live.post("/v1/completions", prompt=prompt, method=method, max_tokens=NEW)
        assert response.status_code == 200
        text: str = response.json()["choices"][0]["text"]
        return text

    with ThreadPoolExecutor(len(requests)) as pool:
        texts = list(pool.map(answer, requests))
    for (prompt, method), text in zip(requests, texts, strict=True):
        assert text if method == "sbd" else text == wanted(live, prompt)


def test_a_streamed_chat_is_the_whole_one(live: Live) -> None:
    whole = live.chat(max_tokens=NEW).json()["choices"][0]["message"]["content"]
    *events, last = parts(live.chat(max_tokens=NEW, stream=True))
    assert last == "[DONE]"
    deltas = [json.loads(event)["choices"][0]["delta"].get("content") or "" for event in events]
    assert "".join(deltas) == whole != ""
    assert len([delta for delta in deltas if delta]) > 1


def test_prompts_are_not_shared(live: Live) -> None:
    """Pages have no states, so a prompt is fed again each time."""
    for _ in range(2):
        assert live.post("/v1/completions", prompt=PROMPTS[2] * 8, max_tokens=2).status_code == 200
    assert live.serving.worker.figures.prefix_hit_tokens == 0
