"""What a pass costs beside the model: operations, and waits of the host. Passes fed ahead of what is known give the same."""

import random
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import decoded, drawn_settings
from decoding.ahead import assert_ahead_is_the_same
from families import MODES, tiny_sbd
from measuring.operations import Operations
from measuring.static_batch import StaticBatch, static_batch
from measuring.synchronisations import Synchronisations, as_on_an_accelerator
from setblock.decoding.samplers import EntropyBounded, FixedCount
from setblock.decoding.settings.table import DecodingSettings, Method
from setblock.decoding.step.inputs import schedules_ahead
from setblock.engine.generate import together
from setblock.model.runners.forward import PaddedRunner

pytestmark = pytest.mark.usefixtures("longest_drafts")

SETTINGS = {
    "ntp": DecodingSettings(method="ntp", max_new_tokens=64),
    "sbd": DecodingSettings(method="sbd", block_size=16, sampler=FixedCount(4), max_new_tokens=64),
    "sbd, entropy-bounded": DecodingSettings(
        method="sbd", block_size=16, sampler=EntropyBounded(9.0), max_new_tokens=64
    ),
    "exact": DecodingSettings(method="exact", block_size=16, sampler=FixedCount(16), max_new_tokens=64),
}
MOST = {"ntp": 88, "sbd": 115, "sbd, entropy-bounded": 124, "exact": 168}
"""Operations of a pass, with its outputs for the host. Each pass of `exact` checks a draft, corrects it and drafts the next."""


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", SETTINGS)
def test_a_pass_is_few_operations_and_waits_for_nothing(
    name: str, rows: int, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    sbd.end_of_text_ids = ()
    requests = [(prompt, SETTINGS[name]) for prompt in prompts[:rows]]
    with as_on_an_accelerator(), Operations(sbd.model) as operations, Synchronisations() as waits:
        answers = [each.generation for progress in together(sbd, requests) for each in progress if each.generation]
    passes, counted = operations.passes, max(each.passes.total for each in answers)
    assert 0 <= passes - counted <= (0 if name == "ntp" else 1)  # one was fed before the end was known
    assert operations.total / passes <= MOST[name], operations.counts
    assert waits.total <= 12 * rows, (
        waits.counts
    )  # when a request joins and when its answer is read, and none in a pass


@pytest.mark.parametrize("name", SETTINGS)
def test_a_batch_waits_once_a_pass_where_it_does_not_run_ahead(
    name: str, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(PaddedRunner, "runs_ahead", False)
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    sbd.end_of_text_ids = ()
    with as_on_an_accelerator(), Synchronisations() as waits:
        passes = sum(1 for _ in together(sbd, [(prompts[0], SETTINGS[name])]))
    assert passes > 5
    assert waits.total <= passes + 10, waits.counts  # and some more when it joins, and at the end


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("seed", range(4))
def test_passes_that_are_fed_ahead_give_the_same(
    seed: int, mode: str, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """The same answers and the same passes, whatever is asked for, and with ends of text anywhere."""
    sbd = tiny_sbd("llama", tokenizer, mode=mode, dtype=torch.float64)
    sbd.end_of_text_ids = tuple(range(2, 14))
    rng = random.Random(seed)
    settings = [replace(drawn_settings(rng, tokenizer), stop=(), n=1) for _ in range(3)]
    assert_ahead_is_the_same(sbd, prompts, settings, expected=decoded(sbd, prompts, settings))


@pytest.mark.parametrize("size", [1, 5, 16])
@pytest.mark.parametrize("method", ["ntp", "sbd", "exact"])
def test_what_is_fed_ahead_bounds_what_a_pass_needs(
    method: Method, size: int, tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Of each pass that is not over a prompt, from what the pass before it fed; a prompt's own may fill a whole block."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(
        method=method,
        sampler=EntropyBounded(4.0),
        block_size=size,
        prompt_lookup=1,
        max_new_tokens=33,
    )
    repeated = [3, 4] * 10  # which is copied
    batch: StaticBatch = static_batch(sbd, [*prompts, repeated], [settings] * (1 + len(prompts)))
    before = batch.schedules(batch.runner)
    for _ in batch.steps():
        bounds, before = schedules_ahead(before, batch.state.params.rows), batch.schedules(batch.runner)
        if any(scheduled.is_prefill for scheduled in before):  # prompts are fed together only if they are about as long
            continue
        for bound, scheduled in zip(bounds, before, strict=True):
            assert bound.start >= 0
            assert scheduled.tokens <= bound.tokens
            assert scheduled.tokens == 0 or scheduled.end <= bound.end
            assert scheduled.tokens == 0 or scheduled.block_start - scheduled.start <= bound.block_start - bound.start


@pytest.mark.in_turn
@pytest.mark.parametrize("length", [1, 3, 20])
@pytest.mark.parametrize("new_tokens", [1, 2, 9, 17])
def test_a_block_larger_than_the_whole_text_is_fed_ahead(
    new_tokens: int, length: int, tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", dtype=torch.float64)
    sbd.end_of_text_ids = ()
    prompt = ([3, 4] * length)[:length]
    for method in ("sbd", "exact"):
        settings = DecodingSettings(method=method, block_size=16, prompt_lookup=1, max_new_tokens=new_tokens)
        assert_ahead_is_the_same(sbd, [prompt], [settings], expected=decoded(sbd, [prompt], [settings]))
