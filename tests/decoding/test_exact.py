"""Exact mode: the output is next-token decoding's, whatever the drafts; its passes are the plain twin's."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import FAMILIES, MODES, tiny_sbd
from setblock.decoding.generate import OpenBatch, open_batch
from setblock.decoding.naive import naive_exact
from setblock.decoding.samplers import EntropyBounded, Sampler
from setblock.decoding.settings import DecodingSettings
from setblock.model.sbd_model import SBDModel

# Drafts of every kind: whole blocks in one pass, nearly none, several passes of some.
POLICIES: list[tuple[Sampler, int]] = [
    (EntropyBounded(math.inf), 1),
    (EntropyBounded(4.0), 1),
    (EntropyBounded(4.0), 3),
    (EntropyBounded(0.0), 2),
    (EntropyBounded(2.0), 99),
]


def decoded(sbd: SBDModel, prompts: list[list[int]], settings: list[DecodingSettings]) -> OpenBatch:
    batch = open_batch(sbd, prompts, settings)
    for _ in batch.steps():
        pass
    return batch


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", FAMILIES)
def test_equals_next_token_decoding(
    family: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Greedy and drawn, in one ragged batch; the prompts' greedy answers are Transformers' own (test_exactness.py)."""
    sbd = tiny_sbd(family, trained_tokenizer, mode=mode)
    settings = [
        DecodingSettings(
            method="exact",
            sampler=sampler,
            draft_passes=passes,
            adaptive_blocks=size in (5, 16),
            block_size=size,
            max_new_tokens=length,
            temperature=temperature,
            seed=size,
        )
        for (sampler, passes), size, length, temperature in zip(
            POLICIES, (8, 5, 16, 1, 7), (20, 17, 30, 9, 22), (0, 0.7, 0, 1, 0), strict=True
        )
    ]
    rows = [prompts[i % 3] for i in range(len(settings))]
    exact = decoded(sbd, rows, settings)
    ntp = decoded(sbd, rows, [replace(each, method="ntp") for each in settings])
    for row, prompt in enumerate(rows):
        ours, theirs = exact.generation(row), ntp.generation(row)
        assert ours.token_ids == theirs.token_ids
        assert ours.finish_reason == theirs.finish_reason
        assert ours.text == theirs.text
        sampler, draft_passes = settings[row].sampler, settings[row].draft_passes
        assert sampler is not None
        assert draft_passes is not None
        token_ids, passes = naive_exact(sbd, prompt, settings[row], sampler=sampler, draft_passes=draft_passes)
        assert token_ids == ours.token_ids
        assert passes == ours.passes.decoding
        assert all(0 <= by <= passes for by in ours.revealed_by)


@pytest.mark.parametrize("mode", MODES)
def test_a_model_whose_drafts_are_always_right_keeps_all_of_them(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Its logits don't depend on what it attends to, so causal and block outputs agree: every pass commits a whole block."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    with torch.no_grad():
        sbd.model.get_output_embeddings().weight.zero_()
        sbd.model.get_output_embeddings().weight[77] = 0  # a tie: the smallest id that is allowed
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(method="exact", sampler=EntropyBounded(math.inf), block_size=8, max_new_tokens=40)
    generation = decoded(sbd, [prompts[0]], [settings]).generation(0)
    # 5 blocks: the first has a pass of its own, each commit is the next one's first pass, the last is checked too
    assert (generation.passes.block, generation.passes.commit) == (1, 5)
    assert generation.num_tokens == 40


def test_nothing_unverified_is_ever_shown(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    """What is final after a pass is a prefix of the answer, and grows."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(method="exact", sampler=EntropyBounded(math.inf), block_size=8, max_new_tokens=30)
    batch = open_batch(sbd, [prompts[1]], [settings])
    seen = [batch.state.answer(0).tolist() for _ in batch.steps()]
    answer = batch.generation(0).token_ids
    assert seen[0] == answer[:1]
    for before, after in zip(seen, [*seen[1:], answer], strict=True):
        assert after[: len(before)] == before
    assert len(seen[-1]) > len(seen[0])
