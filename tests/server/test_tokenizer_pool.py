"""The tokenizers of many requests at once."""

import asyncio
import threading
from concurrent.futures import ThreadPoolExecutor

from server.live import TIMEOUT
from setblock.decoding.answer.prompt import encode_prompt


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
