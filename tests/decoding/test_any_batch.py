"""Any batch of requests: the plain twins' answers, pass for pass, however the batch is run.

Few tokens are allowed, so that answers end, drafts are right and copies match often. The models compute in float64, as in
test_mixed_batch.py.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from answers import decoded
from decoding.ahead import assert_ahead_is_the_same
from decoding.samplers.cases import KINDS, samplers
from families import MODES, tiny_sbd
from naive import full_logits, naive_decode, naive_exact
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

WORDS = 12  # token ids below this are allowed
TWINNED = sorted({*KINDS} - {"credit-decoding"})  # the twins leave the logits as they are


@pytest.fixture(scope="module", params=MODES)
def sbd(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    return tiny_sbd("llama", trained_tokenizer, mode=request.param, dtype=torch.float64)


def few(model: Any, tokens: list[int], block_start: int) -> Tensor:
    """The logits of a full pass under the ban of all other tokens."""
    logits = full_logits(model, tokens, block_start)
    logits[:, WORDS:] = -math.inf
    return logits


PROMPTS = st.builds(
    lambda unit, length: (unit * length)[:length],
    st.lists(st.integers(2, WORDS - 1), min_size=1, max_size=5),
    st.integers(1, 20),
)


@st.composite
def requests(draw: st.DrawFn, vocab_size: int) -> DecodingSettings:
    """A request that the plain twins know, or one for plain decoding."""
    new_tokens = draw(st.integers(1, 24), "new tokens")
    return DecodingSettings(
        method=draw(st.sampled_from(["sbd", "sbd", "exact", "exact", "ntp"])),
        sampler=draw(st.sampled_from(TWINNED).flatmap(samplers) | st.just(EntropyBounded(2.0))),
        block_size=draw(st.integers(1, 16)),
        prompt_lookup=draw(st.integers(0, 2)),
        drafts=draw(st.sampled_from(["adaptive", "fixed"])),
        max_new_tokens=new_tokens,
        temperature=draw(st.sampled_from([0.0, 0.0, 1.5])),
        seed=draw(st.integers(0, 9)),
        prefill_chunk=draw(st.sampled_from([None, 1, 5])),
        logprobs=draw(st.sampled_from([None, None, 2])),
        banned_tokens=tuple(range(WORDS, vocab_size)),
    )


@given(data=st.data())
@settings(max_examples=settings.default.max_examples // 2)
def test_answers_and_passes_are_the_plain_twins(data: st.DataObject, sbd: SBDModel) -> None:
    sbd.end_of_text_ids = tuple(data.draw(st.sets(st.integers(2, WORDS - 1), max_size=3), "ends"))
    rows = data.draw(st.lists(st.tuples(PROMPTS, requests(sbd.vocab_size)), min_size=1, max_size=4), "rows")
    prompts, wanted = [prompt for prompt, _ in rows], [each for _, each in rows]
    batch = decoded(sbd, prompts, wanted)
    assert_ahead_is_the_same(sbd, prompts, wanted, expected=batch)
    plain = decoded(sbd, prompts, [replace(each, method="ntp") for each in wanted])
    for row, (prompt, each) in enumerate(rows):
        found = batch.generation(row)
        if each.method == "sbd":
            token_ids, passes = naive_decode(sbd, prompt, each, sampler=each.sampler, forward=few)
        elif each.method == "exact":
            token_ids, passes = naive_exact(sbd, prompt, each, sampler=each.sampler, forward=few)
            assert token_ids == plain.generation(row).token_ids
        else:
            token_ids, passes = plain.generation(row).token_ids, found.num_tokens - 1
        assert found.token_ids == token_ids
        assert found.passes.decoding == passes
        assert found.passes.prefill == math.ceil(len(prompt) / (each.prefill_chunk or len(prompt)))
        assert (found.finish_reason == "stop") == (token_ids[-1] in sbd.end_of_text_ids)
