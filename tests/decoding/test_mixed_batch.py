"""A batch of requests that differ in everything: each answer is what the request gives alone, and exact mode is `ntp`.

The models compute in float64: sums of a batched matrix product then equal those of a single one up to the last bits of a
float64, which is nothing to the float32 that logits are compared in. So tokens are equal, not nearly.
"""

import random
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import ORDERS, InOrder, Remembering, answers
from conftest import TEXTS
from families import tiny_sbd
from setblock.decoding.generate import Generation, generate_batch
from setblock.decoding.samplers import SAMPLERS, EntropyBounded, Sampler
from setblock.decoding.settings import DecodingSettings
from setblock.model.sbd_model import SBDModel

OTHERS: list[Sampler] = [
    EntropyBounded(1e9),
    EntropyBounded(4.0),
    EntropyBounded(3.0, proxy="margin"),
    EntropyBounded(0.0),
    InOrder(ORDERS["ends first"]),
    Remembering(),
]


def model(family: str, tokenizer: PreTrainedTokenizerBase, mode: str) -> SBDModel:
    sbd = tiny_sbd(family, tokenizer, mode=mode, dtype=torch.float64)
    sbd.end_of_text_ids = (0, 40, 41)  # answers of random models end sometimes
    return sbd


def drawn_settings(rng: random.Random, tokenizer: PreTrainedTokenizerBase, *, method: Any = None) -> DecodingSettings:
    """A request with about half of all parameters."""
    length = rng.randint(1, 16)

    def sometimes(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.4 else otherwise

    def token_ids(most: int) -> tuple[int, ...]:
        return tuple(rng.sample(range(1, 300), rng.randint(1, most)))

    samplers = [*OTHERS, *(sampler() for sampler in SAMPLERS.values())]
    return DecodingSettings(
        method=method or rng.choice(["sbd", "sbd", "exact", "exact", "ntp"]),
        sampler=rng.choice(samplers),
        block_size=rng.choice([1, 2, 3, 5, 8, 16]),
        adaptive_blocks=sometimes(True, False),
        draft_passes=sometimes(rng.randint(1, 5), None),
        max_new_tokens=length,
        min_new_tokens=sometimes(rng.randint(0, length), 0),
        temperature=rng.choice([0.0, 0.0, 0.5, 1.0, 2.0]),
        top_k=sometimes(rng.randint(1, 60), 0),
        top_p=sometimes(rng.uniform(0.2, 1), 1.0),
        min_p=sometimes(rng.uniform(0, 0.3), 0.0),
        repetition_penalty=sometimes(rng.choice([0.7, 1.3, 2.0]), 1.0),
        logit_bias=sometimes({each: rng.uniform(-5, 5) for each in token_ids(20)}, {}),
        banned_tokens=sometimes(token_ids(100), ()),
        stop=sometimes([tokenizer.decode([each]) for each in token_ids(8)], ()),
        stop_token_ids=sometimes(token_ids(10), ()),
        seed=rng.randint(-(2**63), 2**63 - 1),
        n=sometimes(rng.randint(1, 3), 1),
        logprobs=sometimes(rng.randint(0, 5), None),
    )


def assert_same(ours: Generation, theirs: Generation) -> None:
    assert ours.token_ids == theirs.token_ids
    assert ours.text == theirs.text
    assert ours.finish_reason == theirs.finish_reason
    assert (ours.logprobs is None) == (theirs.logprobs is None)
    for mine, other in zip(ours.logprobs or (), theirs.logprobs or (), strict=True):
        assert mine.logprob == pytest.approx(other.logprob, abs=1e-3)
        assert [value for _, value in mine.alternatives] == pytest.approx(
            [value for _, value in other.alternatives], abs=1e-3
        )


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        ("llama", "unshifted"),
        ("gpt2", "shifted"),
        ("gemma3_text", "unshifted, first token causal"),
        ("llama", "shifted"),
    ],
)
def test_each_of_fifty_requests_is_answered_as_alone(
    family: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd, rng = model(family, trained_tokenizer, mode), random.Random(f"{family} {mode}")
    prompts = [rng.choice(TEXTS)[: rng.randint(1, 60)] + "." for _ in range(50)]
    settings = [drawn_settings(rng, trained_tokenizer) for _ in range(50)]
    together = generate_batch(sbd, prompts, settings=settings, raw=True)
    assert len(together) == sum(each.n for each in settings)
    remaining = iter(together)
    for prompt, each in zip(prompts, settings, strict=True):
        for theirs in generate_batch(sbd, [prompt], settings=each, raw=True):
            ours = next(remaining)
            assert_same(ours, theirs)
            assert ours.passes == theirs.passes
            assert ours.revealed_by == theirs.revealed_by
            assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-3)
    assert {each.finish_reason for each in together} == {"stop", "length"}


@pytest.mark.parametrize(
    ("family", "mode"), [("llama", "unshifted"), ("gpt2", "shifted"), ("gemma3_text", "unshifted, first token causal")]
)
def test_exact_mode_with_every_parameter_is_next_token_decoding(
    family: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, rng = model(family, trained_tokenizer, mode), random.Random(f"exact {family} {mode}")
    settings = [replace(drawn_settings(rng, trained_tokenizer, method="exact"), n=1) for _ in range(50)]
    rows = [prompts[n % 3] for n in range(50)]
    exact = answers(sbd, rows, settings)
    ntp = answers(sbd, rows, [replace(each, method="ntp") for each in settings])
    for each, ours, theirs in zip(settings, exact, ntp, strict=True):
        assert_same(ours, theirs)
        # Where every draft is wrong from its second token on, each token takes the draft's passes and the one that checks it
        assert ours.passes.decoding <= (1 + (each.draft_passes or 1)) * theirs.num_tokens
    assert {each.finish_reason for each in exact} == {"stop", "length"}
