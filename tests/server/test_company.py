"""440 requests that differ in everything, from 1 to 32 at a time: each gets over the wire what it gets alone in the library.

The model computes in float64, as in tests/decoding/test_mixed_batch.py, so that sums of different shapes differ by nothing.
"""

import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import OTHERS, drawn_settings
from conftest import TEXTS
from server.live import Live, parts, serving, tiny
from setblock import DecodingSettings, Generation, generate_batch
from setblock.decoding.samplers import SAMPLERS
from setblock.decoding.samplers.named import name_of, options_of

REQUESTS = {1: 20, 2: 40, 4: 80, 8: 100, 16: 120, 32: 80}  # at a time: how many
SAME = (
    "method", "block_size", "prompt_lookup", "drafts", "temperature", "top_k", "top_p", "min_p", "repetition_penalty",
    "banned_tokens", "stop_token_ids", "seed", "n", "logprobs",
)  # fmt: skip


@dataclass(frozen=True)
class Question:
    """A request, and whether its answer is streamed."""

    prompt: str
    settings: DecodingSettings
    stream: bool

    @property
    def body(self) -> dict[str, Any]:
        settings = self.settings
        assert settings.sampler is not None
        return {name: getattr(settings, name) for name in SAME if getattr(settings, name) is not None} | {
            "prompt": self.prompt,
            "max_tokens": settings.max_new_tokens,
            "min_tokens": settings.min_new_tokens,
            "stop": list(settings.stop),
            "logit_bias": {str(token_id): value for token_id, value in settings.logit_bias.items()},
            "sampler": name_of(settings.sampler),
            "sampler_options": options_of(settings.sampler),
            "stream": self.stream,
            "stream_options": {"include_usage": True} if self.stream else None,
        }


@dataclass(frozen=True)
class Answered:
    """What came back: of each answer its text and why it ended; of all together the passes."""

    texts: list[str]
    reasons: list[str]
    passes: dict[str, int]


@pytest.fixture(scope="module")
def exact_live(trained_tokenizer: PreTrainedTokenizerBase) -> Iterator[Live]:
    sbd = tiny(trained_tokenizer)
    sbd.model.double()
    sbd.end_of_text_ids = (0, 40, 41)  # answers of random models end sometimes
    with serving(sbd) as running:
        yield running


def drawn(rng: random.Random, tokenizer: PreTrainedTokenizerBase) -> Question:
    settings = drawn_settings(rng, tokenizer)
    if type(settings.sampler) not in SAMPLERS.values():  # a client can only name samplers
        settings = replace(settings, sampler=OTHERS[0])
    return Question(rng.choice(TEXTS)[: rng.randint(1, 60)] + ".", settings, rng.random() < 0.4)


def answered(live: Live, requested: Question) -> Answered:
    reply = live.post("/v1/completions", **requested.body)
    assert reply.status_code == 200, reply.text
    if not requested.stream:
        said = reply.json()
        choices = sorted(said["choices"], key=lambda choice: choice["index"])
        return Answered([c["text"] for c in choices], [c["finish_reason"] for c in choices], said["usage"]["passes"])
    texts, reasons = [""] * requested.settings.n, [""] * requested.settings.n
    *pieces, usage, done = parts(reply)
    assert done == "[DONE]"
    for piece in map(json.loads, pieces):
        for choice in piece["choices"]:
            texts[choice["index"]] += choice["text"]
            reasons[choice["index"]] = choice["finish_reason"] or reasons[choice["index"]]
    return Answered(texts, reasons, json.loads(usage)["usage"]["passes"])


def of_generations(generations: list[Generation]) -> Answered:
    kinds = ("prefill", "block", "commit")
    return Answered(
        [each.text for each in generations],
        [each.finish_reason for each in generations],
        {kind: sum(getattr(each.passes, kind) for each in generations) for kind in kinds},
    )


@pytest.mark.parametrize("at_once", [*(pytest.param(each, marks=pytest.mark.nightly) for each in (1, 2, 4, 8, 16)), 32])
def test_each_answer_is_the_one_it_gives_alone(exact_live: Live, at_once: int) -> None:
    rng = random.Random(at_once)
    requested = [drawn(rng, exact_live.model.tokenizer) for _ in range(REQUESTS[at_once])]
    with ThreadPoolExecutor(at_once) as clients:
        found = list(clients.map(lambda each: answered(exact_live, each), requested))
    with torch.inference_mode():
        for each, ours in zip(requested, found, strict=True):
            alone = generate_batch(exact_live.model, [each.prompt], settings=each.settings, raw=True)
            assert ours == of_generations(alone), each
