"""Log-probabilities: the model's own, of a plain causal pass in the methods that promise next-token decoding's text."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from answers import answers
from families import tiny_model, tiny_sbd
from setblock.decoding.answer.generation import Generation
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

SHAPES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "drawn": {"temperature": 0.8, "seed": 4, "top_p": 0.9},
    "ruled": {"repetition_penalty": 1.5, "logit_bias": {50: 3.0}, "banned_tokens": (60, 61), "min_new_tokens": 5},
}


def plain_logprobs(sbd: SBDModel, prompt: list[int], answer: list[int]) -> Tensor:
    """[n, V] of one causal pass over the whole text. A mask is no token of an answer."""
    with torch.no_grad():
        logits = sbd.model(input_ids=torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1].float()
    if sbd.sbd_config is not None:
        logits[:, sbd.sbd_config.mask_token_id] = -torch.inf
    return logits.log_softmax(dim=-1)


def assert_are(generation: Generation, log_probs: Tensor, *, alternatives: int) -> None:
    assert generation.logprobs is not None
    assert len(generation.logprobs) == generation.num_tokens
    for token_id, of_token, expected in zip(generation.token_ids, generation.logprobs, log_probs, strict=True):
        assert of_token.logprob == pytest.approx(float(expected[token_id]), abs=1e-3)
        values = [value for _, value in of_token.alternatives]
        assert len(of_token.alternatives) == alternatives
        assert values == sorted(values, reverse=True)
        assert len({other for other, _ in of_token.alternatives}) == alternatives
        assert values == pytest.approx(expected.topk(alternatives).values.tolist(), abs=1e-3)
        assert values == pytest.approx([float(expected[other]) for other, _ in of_token.alternatives], abs=1e-3)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("method", ["ntp", "exact"])
def test_they_are_a_plain_forward_passes(
    method: Any, shape: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Before temperature, penalties and bans; in a batch where each row asks for another number of alternatives."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    settings = DecodingSettings(
        method=method, block_size=6, max_new_tokens=13, sampler=EntropyBounded(4.0), **SHAPES[shape]
    )
    counts = (0, 5, 20)
    rows = [replace(settings, logprobs=count) for count in counts]
    ours = answers(sbd, [*prompts, prompts[0]], [*rows, settings])
    for prompt, generation, count in zip(prompts, ours, counts, strict=False):
        assert_are(generation, plain_logprobs(sbd, prompt, generation.token_ids), alternatives=count)
    assert ours[3].logprobs is None
    assert ours[3].token_ids == ours[0].token_ids


def test_of_blocks_they_are_the_passes_own(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """What a greedy block pass chose was its most likely token, and no likelihood is missing."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    rows = [
        DecodingSettings(method="sbd", block_size=k, max_new_tokens=14, sampler=EntropyBounded(4.0), logprobs=3)
        for k in (4, 8, 5)
    ]
    for generation in answers(sbd, prompts, rows):
        assert generation.logprobs is not None
        for token_id, of_token in zip(generation.token_ids, generation.logprobs, strict=True):
            assert of_token.alternatives[0] == (token_id, of_token.logprob)
            assert of_token.logprob < 0
    # The first token of a block is a causal pass's in this mode
    generation = answers(sbd, prompts[:1], rows[:1])[0]
    assert generation.logprobs is not None
    plain = plain_logprobs(sbd, prompts[0], generation.token_ids)
    for place in range(0, generation.num_tokens, 4):
        expected = float(plain[place, generation.token_ids[place]])
        assert generation.logprobs[place].logprob == pytest.approx(expected, abs=1e-3)


def test_no_more_alternatives_than_tokens(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = SBDModel(tiny_model("llama", vocab_size=12), trained_tokenizer)
    sbd.end_of_text_ids = ()
    prompt = [3, 4, 5]
    settings = DecodingSettings(method="ntp", max_new_tokens=6, logprobs=20)
    ours = answers(sbd, [prompt] * 2, [settings, replace(settings, logprobs=4)])
    for generation, count in zip(ours, (12, 4), strict=True):
        assert_are(generation, plain_logprobs(sbd, prompt, generation.token_ids), alternatives=count)
    assert ours[0].logprobs is not None
    assert sum(math.exp(value) for _, value in ours[0].logprobs[0].alternatives) == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_there_is_one_for_each_token_of_a_cut_answer(
    method: Any, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """A stop string, or an end-of-text, in the middle of a block."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    settings = DecodingSettings(
        method=method, block_size=8, max_new_tokens=20, sampler=EntropyBounded(math.inf), logprobs=2
    )
    whole = answers(sbd, prompts[:1], [settings])[0]
    ends = [replace(settings, stop_token_ids=(whole.token_ids[5],))]
    ends += [replace(settings, stop=(trained_tokenizer.decode(whole.token_ids[n : n + 1]),)) for n in range(3, 9)]
    for generation in answers(sbd, prompts[:1] * len(ends), ends):
        assert generation.finish_reason == "stop"
        assert 0 < generation.num_tokens < 20
        assert generation.logprobs is not None
        assert whole.logprobs is not None
        assert len(generation.logprobs) == generation.num_tokens
        assert generation.token_ids == whole.token_ids[: generation.num_tokens]
        for ours, theirs in zip(generation.logprobs, whole.logprobs, strict=False):
            assert ours.logprob == pytest.approx(theirs.logprob, abs=1e-3)
