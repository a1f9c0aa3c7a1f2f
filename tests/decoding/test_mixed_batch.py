"""A batch of requests that differ in everything: each answer is what the request gives alone, and exact mode is `ntp`.

The models compute in float64: sums of a batched matrix product then equal those of a single one up to the last bits of a
float64, which is nothing to the float32 that logits are compared in. So tokens are equal, not nearly.
"""

import random
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import answers, assert_same, drawn_settings
from conftest import TEXTS
from families import tiny_sbd
from setblock.engine.generate import generate_batch
from setblock.model.sbd_model import SBDModel


def model(family: str, tokenizer: PreTrainedTokenizerBase, mode: str) -> SBDModel:
    sbd = tiny_sbd(family, tokenizer, mode=mode, dtype=torch.float64)
    sbd.end_of_text_ids = (0, 40, 41)  # answers of random models end sometimes
    return sbd


FAMILIES = pytest.mark.parametrize(
    ("family", "mode"), [("llama", "unshifted"), ("gpt2", "shifted"), ("gemma3_text", "unshifted, first token causal")]
)


@FAMILIES
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


@FAMILIES
def test_exact_mode_with_every_parameter_is_next_token_decoding(
    family: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, rng = model(family, trained_tokenizer, mode), random.Random(f"exact {family} {mode}")
    settings = [replace(drawn_settings(rng, trained_tokenizer, method="exact"), n=1) for _ in range(50)]
    rows = [prompts[n % 3] for n in range(50)]
    exact = answers(sbd, rows, settings)
    ntp = answers(sbd, rows, [replace(each, method="ntp") for each in settings])
    for ours, theirs in zip(exact, ntp, strict=True):
        assert_same(ours, theirs)
        # Where every draft is wrong from its second token on, each token takes the draft's pass and the one that checks it
        assert ours.passes.decoding <= 2 * theirs.num_tokens
    assert {each.finish_reason for each in exact} == {"stop", "length"}
