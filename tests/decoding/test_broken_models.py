"""Models whose logits are not numbers: the request ends with an error, and the others of its batch don't notice."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from answers import Remembering, answers
from families import MODES, tiny_sbd
from setblock.decoding.generate import generate, generate_batch, stream
from setblock.decoding.samplers import EntropyBounded, Sampler
from setblock.decoding.settings import DecodingSettings
from setblock.errors import SetBlockError
from setblock.model.sbd_model import SBDModel

SOME: Sampler = EntropyBounded(4.0)


def poisoned(sbd: SBDModel, token_id: int) -> SBDModel:
    """From the pass on that reads the token, all that attends to it is not a number."""
    with torch.no_grad():
        sbd.model.get_input_embeddings().weight[token_id] = torch.nan
    return sbd


def rows(**fields: Any) -> list[DecodingSettings]:
    base = DecodingSettings(method="sbd", block_size=5, max_new_tokens=16, sampler=SOME, logprobs=1, **fields)
    return [
        base,
        replace(base, method="exact"),
        replace(base, method="ntp"),
        replace(base, temperature=1.0, seed=4),
        replace(base, method="exact", temperature=1.0, seed=4),
        replace(base, sampler=Remembering(), block_size=3),
        replace(base, adaptive_blocks=True, stop="q"),
    ]


@pytest.mark.parametrize("mode", MODES)
def test_others_of_the_batch_finish_as_alone(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Prompts that break at once, prompts that never do, and answers that break when they come to the token."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    sbd.end_of_text_ids = ()
    settings = rows()
    whole = answers(sbd, [prompts[0]] * len(settings), settings)
    poison = whole[2].token_ids[6]  # of next-token decoding, and so of exact mode
    fine = [token_id for token_id in prompts[0] if token_id != poison]
    poisoned(sbd, poison)
    batch = [(prompt, each) for each in settings for prompt in (fine, [*fine, poison, 9], prompts[1])]
    together = answers(sbd, [prompt for prompt, _ in batch], [each for _, each in batch])
    reasons = []
    for (prompt, each), generation in zip(batch, together, strict=True):
        alone = answers(sbd, [prompt], [each])[0]
        assert generation.token_ids == alone.token_ids
        assert generation.text == alone.text
        assert generation.passes == alone.passes
        assert generation.revealed_by == alone.revealed_by
        assert generation.finish_reason == alone.finish_reason
        if poison in prompt:
            assert generation.finish_reason == "error"
            assert (generation.token_ids, generation.text) == ([], "")
            # Blocks whose first token is a block pass's: the prefill's logits are not looked at
            assert generation.num_forwards == 1 + (mode == "unshifted" and each.method == "sbd")
        elif poison not in generation.token_ids and each.method == "ntp":
            assert generation.finish_reason == "length"
        assert all(math.isfinite(of_token.logprob) for of_token in generation.logprobs or ())
        reasons.append((generation.finish_reason, bool(generation.token_ids)))
    # All three kinds came up
    assert {("error", False), ("error", True), ("length", True)} <= set(reasons)


def test_ntp_keeps_what_it_has(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer)
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(method="ntp", max_new_tokens=12)
    before = answers(sbd, prompts[:1], [settings])[0]
    assert before.finish_reason == "length"
    place = next(n for n in range(3, 12) if before.token_ids[n] not in [*prompts[0], *before.token_ids[:n]])
    poisoned(sbd, before.token_ids[place])
    after = answers(sbd, prompts[:1], [settings])[0]
    assert after.finish_reason == "error"
    assert after.token_ids == before.token_ids[: place + 1]
    assert after.text == trained_tokenizer.decode(after.token_ids, skip_special_tokens=True)
    assert after.passes.decoding == place + 1


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_one_request_is_told_in_one_line(method: Any, trained_tokenizer: PreTrainedTokenizerBase) -> None:
    poison = trained_tokenizer("Tom").input_ids[0]
    sbd = poisoned(tiny_sbd("llama", trained_tokenizer), poison)
    settings = DecodingSettings(method=method, max_new_tokens=6, block_size=4, banned_tokens=(poison,))
    for ask in (generate, lambda *args, **options: list(stream(*args, **options))):
        with pytest.raises(SetBlockError, match="logits that are not numbers after 0 tokens") as error:
            ask(sbd, "Tom has", settings=settings, raw=True)
        assert "\n" not in str(error.value)
    first, second = generate_batch(sbd, ["Tom has", " 12"], settings=settings, raw=True)
    assert first.finish_reason == "error"
    assert second.finish_reason != "error"
    assert second.token_ids == generate(sbd, " 12", settings=settings, raw=True).token_ids


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_no_number_ends_in_an_error_and_not_in_a_loop(
    value: float,
    method: Any,
    temperature: float,
    trained_tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
) -> None:
    """One token that is infinite or no number; or all of them -inf."""
    sbd = tiny_sbd("llama", trained_tokenizer)

    def spoil(module: torch.nn.Module, args: Any, logits: Tensor) -> Tensor:
        logits = logits.clone()
        logits[..., slice(None) if value == -math.inf else 50] = value
        return logits

    sbd.model.get_output_embeddings().register_forward_hook(spoil)
    settings = DecodingSettings(method=method, max_new_tokens=6, block_size=4, temperature=temperature)
    penalised = replace(settings, repetition_penalty=1.5, top_p=0.9)
    for generation in answers(sbd, prompts[:2], [settings, penalised]):
        assert (generation.finish_reason, generation.num_tokens) == ("error", 0)


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_a_model_that_leaves_only_banned_tokens(
    method: Any, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer)

    def only(module: torch.nn.Module, args: Any, logits: Tensor) -> Tensor:
        return torch.full_like(logits, -torch.inf).index_fill(-1, torch.tensor([50, 51]), 1.0)

    sbd.model.get_output_embeddings().register_forward_hook(only)
    settings = DecodingSettings(method=method, max_new_tokens=6, block_size=4, sampler=SOME)
    rows = [replace(settings, banned_tokens=banned) for banned in ((50,), (50, 51), ())]
    left, none, free = answers(sbd, prompts, rows)
    assert left.token_ids == [51] * 6
    assert (none.finish_reason, none.token_ids) == ("error", [])
    assert free.token_ids == [50] * 6
