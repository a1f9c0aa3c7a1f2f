"""What is promised for every family: cached = uncached, batch = single, NTP mode = the base model's own `generate`."""

from dataclasses import replace

import pytest
import torch
from transformers import DynamicCache, PreTrainedTokenizerBase

import answers
from families import CONTEXT, FAMILIES, MODES, tiny_model, tiny_sbd
from measuring.plain import transformers_answer
from measuring.static_batch import StaticBatch
from naive import full_logits, naive_decode
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

SAMPLER = EntropyBounded(4.0)  # several tokens a pass, but not whole blocks, on these models


def decoded(sbd: SBDModel, prompts: list[list[int]], settings: list[DecodingSettings]) -> StaticBatch:
    return answers.decoded(sbd, prompts, [replace(each, sampler=SAMPLER) for each in settings])


def assert_equals_naive(
    sbd: SBDModel, prompt: list[int], settings: DecodingSettings, batch: StaticBatch, row: int
) -> None:
    token_ids, passes = naive_decode(sbd, prompt, settings, sampler=SAMPLER, forward=full_logits)
    generation = batch.generation(row)
    assert generation.token_ids == token_ids
    assert generation.passes.decoding == passes
    assert generation.passes.prefill == 1


def assert_committed_is_exact(sbd: SBDModel, batch: StaticBatch) -> None:
    """The cache holds what a plain causal pass over the same tokens would have left."""
    for row in range(batch.state.batch):
        committed = int(batch.state.cache.committed[row])
        plain = DynamicCache()
        with torch.inference_mode():
            sbd.model(input_ids=batch.state.tokens[row, :committed][None], past_key_values=plain, use_cache=True)
        for ours, theirs in zip(batch.runner.cache.layers, plain.layers, strict=True):
            for name in ("keys", "values"):
                held = getattr(ours, name)[row, :, :committed]
                torch.testing.assert_close(held, getattr(theirs, name)[0], atol=1e-4, rtol=1e-4)


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_cached_equals_naive_and_commits_exactly(
    family: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Ragged prompts, block sizes and limits in one batch; no limit is a multiple of its size."""
    sbd = tiny_sbd(family, trained_tokenizer, mode=mode)
    sbd.end_of_text_ids = ()  # see test_end_of_text.py
    settings = [DecodingSettings(method="sbd", block_size=k, max_new_tokens=n) for k, n in ((8, 20), (5, 17), (16, 30))]
    batch = decoded(sbd, prompts, settings)
    for row, prompt in enumerate(prompts):
        assert_equals_naive(sbd, prompt, settings[row], batch, row)
        revealed_by = batch.generation(row).revealed_by
        if len(revealed_by) == settings[row].max_new_tokens:  # random weights may end at once
            assert len(set(revealed_by)) < len(revealed_by)  # some passes revealed several
    assert_committed_is_exact(sbd, batch)


@pytest.mark.parametrize("family", FAMILIES)
def test_ntp_mode_is_the_models_own_generate(
    family: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """With SBD config and without them, in one ragged batch."""
    never_prepared = SBDModel(tiny_model(family, vocab_size=len(trained_tokenizer)), trained_tokenizer)
    for sbd in (never_prepared, tiny_sbd(family, trained_tokenizer, mode="shifted")):
        batch = decoded(sbd, prompts, [DecodingSettings(method="ntp", max_new_tokens=20)] * 3)
        for row, prompt in enumerate(prompts):
            generation = batch.generation(row)
            assert generation.token_ids == transformers_answer(sbd.model, prompt, max_new_tokens=20)
            assert generation.tokens_per_forward == 1
        assert_committed_is_exact(sbd, batch)


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["gpt2", "llama", "mistral"])
def test_a_block_that_ends_at_the_last_position_of_the_context(
    family: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd = tiny_sbd(family, trained_tokenizer, mode=mode)
    generator = torch.Generator().manual_seed(0)
    prompts = [torch.randint(5, 300, (n,), generator=generator).tolist() for n in (CONTEXT - 5, CONTEXT - 1, 20)]
    settings = [DecodingSettings(method="sbd", block_size=4, max_new_tokens=n) for n in (5, 1, 9)]
    batch = decoded(sbd, prompts, settings)
    for row, prompt in enumerate(prompts):
        assert_equals_naive(sbd, prompt, settings[row], batch, row)
    # Without a limit of its own, a request gets what the context has room for.
    open_ended = decoded(sbd, prompts[:1], [DecodingSettings(method="sbd", block_size=4)]).generation(0)
    assert open_ended.token_ids == batch.generation(0).token_ids
