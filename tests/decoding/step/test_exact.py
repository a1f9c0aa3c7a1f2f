"""Exact mode: the output is next-token decoding's, whatever the drafts; its passes are the plain twin's."""

import math
from dataclasses import replace

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import ORDERS, InOrder, Remembering, answers, decoded
from decoding.samplers.cases import EXAMPLES
from families import FAMILIES, MODES, tiny_sbd
from measuring.static_batch import static_batch
from naive import full_logits, naive_exact
from setblock.decoding.samplers import EntropyBounded, Sampler
from setblock.decoding.settings.table import DecodingSettings

pytestmark = pytest.mark.usefixtures("longest_drafts")

# Drafts of every kind: whole blocks, some of them, nearly none
SAMPLERS: list[Sampler] = [EntropyBounded(gamma) for gamma in (math.inf, 4.0, 3.0, 0.0, 2.0)]


@pytest.mark.in_turn
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
            block_size=size,
            max_new_tokens=length,
            temperature=temperature,
            seed=size,
        )
        for sampler, size, length, temperature in zip(
            SAMPLERS, (8, 5, 16, 1, 7), (20, 17, 30, 9, 22), (0, 0.7, 0, 1, 0), strict=True
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
        token_ids, passes = naive_exact(sbd, prompt, settings[row], sampler=SAMPLERS[row], forward=full_logits)
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
    # The prompt gives a token, the first pass another and a draft, and each commit is the next block's first pass
    assert (generation.passes.block, generation.passes.commit) == (0, 6)
    assert generation.num_tokens == 40


def test_nothing_unverified_is_ever_shown(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    """What is final after a pass is a prefix of the answer, and grows."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(method="exact", sampler=EntropyBounded(math.inf), block_size=8, max_new_tokens=30)
    batch = static_batch(sbd, [prompts[1]], [settings])
    seen = [batch.state.answer_of(0).tolist() for _ in batch.steps()]
    answer = batch.generation(0).token_ids
    assert seen[0] == answer[:1]
    for before, after in zip(seen, [*seen[1:], answer], strict=True):
        assert after[: len(before)] == before
    assert len(seen[-1]) > len(seen[0])


@pytest.mark.parametrize("penalty", [0.4, 1.7])
def test_penalties_of_a_draft_are_next_token_decodings(
    penalty: float, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Whatever is revealed further right when a token is chosen, it is penalised for what stands before it only."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted", dtype=torch.float64)
    samplers: list[Sampler] = [*(InOrder(order) for order in ORDERS.values()), Remembering()]
    settings = [
        DecodingSettings(
            method="exact",
            sampler=sampler,
            block_size=6,
            max_new_tokens=16,
            repetition_penalty=penalty,
            temperature=temperature,
        )
        for sampler in samplers
        for temperature in (0.0, 0.8)
    ]
    rows = [prompts[n % 3] for n in range(len(settings))]
    exact = answers(sbd, rows, settings)
    ntp = answers(sbd, rows, [replace(each, method="ntp") for each in settings])
    assert [each.token_ids for each in exact] == [each.token_ids for each in ntp]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sampler_that_changes_logits_changes_no_promised_text(
    temperature: float, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """It shapes drafts only: `ntp` and `exact` give what the model says."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted", dtype=torch.float64)
    settings = DecodingSettings(method="ntp", max_new_tokens=12, block_size=6, temperature=temperature)
    samplers: list[Sampler] = [EntropyBounded(), Remembering(), EXAMPLES["credit-decoding"](strength=50.0)]
    rows = [replace(settings, method=method, sampler=each) for method in ("ntp", "exact") for each in samplers]
    first, *others = answers(sbd, [prompts[1]] * len(rows), rows)
    assert all(each.token_ids == first.token_ids for each in others)


def test_a_draft_that_was_right_penalises_nothing_before_it(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    """On a model that likes some tokens everywhere, so that drafts are accepted."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    with torch.no_grad():
        sbd.model.get_output_embeddings().weight.zero_()
    sbd.end_of_text_ids = ()
    settings = [
        DecodingSettings(
            method="exact",
            sampler=InOrder(order),
            block_size=6,
            max_new_tokens=9,
            repetition_penalty=2.0,
            logit_bias={10: 9.0, 11: 8.0, 12: 7.0, 13: 6.0, 14: 5.5, 15: 5.0, 16: 4.6},
        )
        for order in [*ORDERS.values(), (0, 1, 3, 2, 4, 5)]
    ]
    for generation in answers(sbd, [[20, 30, 21]] * len(settings), settings):
        assert generation.token_ids == [10, 11, 12, 13, 14, 15, 16, 10, 10]


@pytest.mark.parametrize("mode", MODES)
def test_drawn_answers_follow_the_models_distribution(mode: str, trained_tokenizer: PreTrainedTokenizerBase) -> None:
    """Chi-square of the first three tokens over 1,500 seeds, of the four tokens that are not banned; some drafts are
    accepted, others corrected."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode, num_hidden_layers=2)
    sbd.end_of_text_ids = ()
    prompt, count, allowed = [20, 30, 40], 1500, [60, 90, 120, 150]
    pairs = torch.tensor([[*prompt, first, second] for first in allowed for second in allowed])
    with torch.no_grad():
        logits = 0.2 * sbd.model(input_ids=pairs).logits[:, -3:, allowed].double()
    first, second, third = logits.softmax(dim=-1).unbind(dim=1)  # [16, 4] each
    row = torch.arange(16)
    joint = first[row, row // 4] * second[row, row % 4]
    expected = (joint[:, None] * third).flatten() * count  # [64]

    settings = DecodingSettings(
        method="exact",
        drafts="fixed",  # answers of three tokens are too short to draft for
        sampler=EntropyBounded(math.inf),
        block_size=3,
        max_new_tokens=3,
        temperature=5.0,  # random models are sure of themselves
        banned_tokens=[token_id for token_id in range(300) if token_id not in allowed],
    )
    batch = static_batch(sbd, [prompt] * count, [replace(settings, seed=seed) for seed in range(count)])
    accepted = replaced = 0
    for step in batch.steps():
        if step.check is not None:
            accepted += int(step.check.accepted.sum())
            replaced += int(step.check.replaced.sum())
    assert min(accepted, replaced) > count / 20
    places = torch.zeros(300, dtype=torch.long)
    places[allowed] = torch.arange(4)
    drawn = places[batch.state.tokens[:, 3:6]] @ torch.tensor([16, 4, 1])
    counts = torch.bincount(drawn, minlength=64)
    often = expected > 5
    assert int(often.sum()) > 30
    degrees = int(often.sum())
    assert float(((counts - expected) ** 2)[often].div(expected[often]).sum()) < degrees + 4 * math.sqrt(2 * degrees)
