"""A prompt that is fed in parts: the same answer, in passes of bounded size."""

import math
from contextlib import nullcontext
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from measuring.synchronisations import as_on_an_accelerator
from setblock.decoding.generate import open_batch
from setblock.decoding.rows import OpenBatch
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings, Method
from setblock.model.protocol.runtime import Feed

LENGTHS = (3, 40, 17, 64)


def decoded(batch: OpenBatch) -> tuple[list[int], list[int]]:
    """How many tokens each row was fed in the passes over prompts, at most; and in those after them."""
    of_prompts, later = [0], [0]
    logits = batch.runner.logits

    def watched(feed: Feed) -> torch.Tensor:
        (later if feed.plan.is_prefill is None else of_prompts).append(feed.tokens.shape[1])
        return logits(feed)

    batch.runner.logits = watched  # type: ignore[method-assign]
    batch.run()
    return of_prompts, later


@pytest.mark.in_turn
@pytest.mark.parametrize("runs_ahead", [False, True])
@pytest.mark.parametrize("chunk", [1, 7, 16, 40])
@pytest.mark.parametrize("method", ["ntp", "exact", "sbd"])
def test_the_answer_does_not_depend_on_the_parts(
    method: Method, chunk: int, runs_ahead: bool, tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", dtype=torch.float64)
    sbd.end_of_text_ids = (0, 40, 41)
    prompts = [[2 + (7 * row + 3 * place) % 60 for place in range(length)] for row, length in enumerate(LENGTHS)]
    whole = DecodingSettings(method=method, sampler=EntropyBounded(4.0), block_size=5, branches=0, max_new_tokens=24)
    parts = replace(whole, prefill_chunk=chunk)
    with as_on_an_accelerator() if runs_ahead else nullcontext():
        expected, found = (open_batch(sbd, prompts, [each] * len(prompts)) for each in (whole, parts))
        expected.run()
        of_prompts, later = decoded(found)
    assert max(of_prompts) <= max(chunk, 10)  # two blocks may be beside the last parts
    assert max(later) <= 10
    for row, length in enumerate(LENGTHS):
        ours, theirs = found.generation(row), expected.generation(row)
        assert ours.token_ids == theirs.token_ids
        assert (ours.passes.prefill, theirs.passes.prefill) == (math.ceil(length / chunk), 1)
        assert ours.passes.decoding == theirs.passes.decoding
        assert ours.entropy == pytest.approx(theirs.entropy, abs=1e-3)


def test_long_prompts_are_fed_in_parts_by_default(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", max_position_embeddings=2048)
    settings = DecodingSettings(method="ntp", max_new_tokens=2)
    batch = open_batch(sbd, [[5] * 1200, [6] * 512], [settings] * 2)
    of_prompts, _ = decoded(batch)
    assert of_prompts == [0, 512, 512, 176]
    assert [batch.generation(row).passes.prefill for row in range(2)] == [3, 1]
