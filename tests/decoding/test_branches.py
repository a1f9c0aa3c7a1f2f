"""Branches: blocks at places of a draft, which give the next draft if the token there is wrong."""

from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import MODES, tiny_sbd
from naive import full_logits, naive_exact
from setblock.decoding.generate import generate_batch, static_batch
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

EXACT = DecodingSettings(max_new_tokens=23, block_size=6, drafts="fixed", sampler=EntropyBounded(6.0), prompt_lookup=0)


def model(tokenizer: PreTrainedTokenizerBase, family: str, mode: str) -> SBDModel:
    """A random model. At a temperature its drafts are often right: the noise decides more than its logits do."""
    return tiny_sbd(family, tokenizer, mode=mode, dtype=torch.float64)


@pytest.mark.in_turn
@pytest.mark.parametrize("temperature", [0.0, 0.9])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("family", ["llama", "gemma3_text", "gpt2"])
def test_tokens_and_passes_are_those_of_the_naive_twin(
    family: str, mode: str, temperature: float, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Alone, and in a batch of rows with other numbers of branches, other blocks and other methods."""
    sbd = model(trained_tokenizer, family, mode)
    settings = [
        replace(EXACT, branches=branches, block_size=size, temperature=temperature, seed=3, prompt_lookup=lookup)
        for branches, size, lookup in ((1, 6, 0), (3, 4, 2), (5, 6, 0), (0, 6, 0))
    ]
    settings += [replace(EXACT, method=each, temperature=temperature) for each in ("ntp", "sbd")]
    rows = [prompts[n % 3] for n in range(len(settings))]
    together = generate_batch(sbd, rows, settings=settings)
    plain = generate_batch(sbd, rows[:4], settings=[replace(each, method="ntp") for each in settings[:4]])
    for prompt, each, found, theirs in zip(rows, settings[:4], together, plain, strict=False):
        token_ids, passes = naive_exact(sbd, prompt, each, sampler=EXACT.sampler, forward=full_logits)  # type: ignore[arg-type]
        assert (found.token_ids, found.passes.decoding) == (token_ids, passes)
        (alone,) = generate_batch(sbd, [prompt], settings=each)
        assert (alone.token_ids, alone.passes.decoding) == (token_ids, passes)
        assert theirs.token_ids == token_ids


def test_a_wrong_draft_costs_no_pass_of_its_own(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted", dtype=torch.float64, num_hidden_layers=3)
    sbd.end_of_text_ids = ()

    def passes(branches: int) -> int:
        each = replace(EXACT, temperature=0.9, branches=branches, max_new_tokens=60)
        return sum(found.passes.decoding for found in generate_batch(sbd, prompts, settings=each))

    assert passes(5) < passes(1) < passes(0)


@pytest.mark.parametrize("drafts", ["fixed", "adaptive"])
def test_what_each_pass_checks_was_drafted_in_the_pass_before(
    drafts: Any, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """With a branch at each place. Passes are free here, so all of them pay."""
    sbd = model(trained_tokenizer, "llama", "unshifted")
    sbd.end_of_text_ids = ()
    each = replace(EXACT, drafts=drafts, branches=5, max_new_tokens=40, sampler=EntropyBounded(float("inf")))
    batch = static_batch(sbd, prompts[:1], [each])
    checked = [step.reading.check for step in batch.steps()]
    assert all(
        check is not None for check in checked[2:-1]
    )  # the prefill drafts nothing; the last token needs no draft
    assert len(checked) < 40


def test_a_compiled_or_paged_pass_has_no_branches(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = model(trained_tokenizer, "llama", "shifted")
    assert sbd.paged_runner(pages=4, page_tokens=16, rows=2).branched == 0
    assert static_batch(sbd, prompts[:1], [replace(EXACT, branches=2)]).runner.branched == 12
    assert static_batch(sbd, prompts[:1], [EXACT]).runner.branched == 0
