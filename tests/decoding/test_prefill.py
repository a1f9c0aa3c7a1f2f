"""A prompt that is fed in parts: the same answer, in passes of bounded size."""

import math
import random
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from measuring.static_batch import StaticBatch, static_batch
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings, Method, RequestParams
from setblock.decoding.step.inputs import prompts_in_parts
from setblock.model.protocol.runtime import ModelInput, RowSchedule

pytestmark = pytest.mark.usefixtures("longest_drafts")

LENGTHS = (3, 40, 17, 64)


def decoded(batch: StaticBatch) -> tuple[list[int], list[int]]:
    """How many tokens each row was fed in the passes over prompts, at most; and in those after them."""
    of_prompts, later = [0], [0]
    logits = batch.runner.logits

    def watched(inputs: ModelInput) -> torch.Tensor:
        (later if inputs.plan.is_prefill is None else of_prompts).append(inputs.tokens.shape[1])
        return logits(inputs)

    batch.runner.logits = watched  # type: ignore[method-assign]
    batch.run()
    return of_prompts, later


@pytest.mark.in_turn
@pytest.mark.parametrize("chunk", [1, 7, 16, 40])
@pytest.mark.parametrize("method", ["ntp", "exact", "sbd"])
def test_the_answer_does_not_depend_on_the_parts(
    method: Method, chunk: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", dtype=torch.float64)
    sbd.end_of_text_ids = (0, 40, 41)
    prompts = [[2 + (7 * row + 3 * place) % 60 for place in range(length)] for row, length in enumerate(LENGTHS)]
    whole = DecodingSettings(method=method, sampler=EntropyBounded(4.0), block_size=5, max_new_tokens=24)
    parts = replace(whole, prefill_chunk=chunk)
    expected, found = (static_batch(sbd, prompts, [each] * len(prompts)) for each in (whole, parts))
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
    batch = static_batch(sbd, [[5] * 1200, [6] * 512], [settings] * 2)
    of_prompts, _ = decoded(batch)
    assert of_prompts == [0, 512, 512, 176]
    assert [batch.generation(row).passes.prefill for row in range(2)] == [3, 1]


def least_work(lengths: list[int], *, free_tokens: float) -> float:
    """The naive twin: of all ways to feed prompts in passes that pad them to their longest, what the best one computes, each
    pass counted as `free_tokens` more."""
    if not lengths:
        return 0.0
    ordered = sorted(lengths)
    return min(
        free_tokens
        + max(ordered[first:]) * (len(ordered) - first)
        + least_work(ordered[:first], free_tokens=free_tokens)
        for first in range(len(ordered))
    )


@pytest.mark.parametrize("seed", range(20))
def test_prompts_of_like_lengths_are_fed_together_for_the_least_work(seed: int) -> None:
    rng = random.Random(seed)
    free_tokens = rng.choice([1.0, 48.0, 512.0])
    lengths = [rng.randint(1, 200) for _ in range(rng.randint(1, 9))]
    params = [cast(RequestParams, SimpleNamespace(settings=DecodingSettings()))] * (1 + len(lengths))
    decoding, work = RowSchedule(300, 301, 301, is_prefill=False), 0.0
    left = [RowSchedule(0, length, length, is_prefill=True) for length in lengths]
    while any(scheduled.tokens for scheduled in left):
        *fed, waiting = prompts_in_parts([*left, decoding], params, free_tokens=free_tokens)
        assert waiting.tokens == 0  # it would be padded
        assert waiting.is_cut
        assert all(
            scheduled.tokens == (0 if scheduled.is_cut else whole.tokens)
            for scheduled, whole in zip(fed, left, strict=True)
        )
        work += free_tokens + max(scheduled.tokens for scheduled in fed) * sum(
            scheduled.tokens > 0 for scheduled in fed
        )
        left = [whole._replace(start=scheduled.end) for scheduled, whole in zip(fed, left, strict=True)]
        left = [scheduled._replace(is_prefill=scheduled.tokens > 0) for scheduled in left]
    assert work == least_work(lengths, free_tokens=free_tokens)


def test_a_batch_pads_no_short_prompt_to_a_long_one(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", dtype=torch.float64, max_position_embeddings=512)
    prompts = [
        [2 + (7 * row + 3 * place) % 60 for place in range(length)] for row, length in enumerate((9, 300, 290, 11))
    ]
    settings = [DecodingSettings(max_new_tokens=8)] * len(prompts)
    batch = static_batch(sbd, prompts, settings)
    of_prompts, _ = decoded(batch)
    assert of_prompts == [0, 300, 11]
    for row, prompt in enumerate(prompts):
        alone = static_batch(sbd, [prompt], settings[:1])
        alone.run()
        assert batch.generation(row).token_ids == alone.generation(0).token_ids
        assert batch.generation(row).passes.prefill == 1
