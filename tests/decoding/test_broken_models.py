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
from setblock.decoding.samplers import EntropyBounded, Sampler
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate, generate_batch, stream
from setblock.errors import SetBlockError
from setblock.model.protocol.draft_text import indexed
from setblock.model.protocol.runtime import ModelInput
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

SOME: Sampler = EntropyBounded(4.0)


def poisoned(sbd: SBDModel, token_id: int) -> SBDModel:
    """From the pass on that reads the token, all that attends to it is not a number."""
    with torch.no_grad():
        sbd.model.get_input_embeddings().weight[token_id] = torch.nan
    return sbd


def spoiled(sbd: SBDModel, token_id: int) -> SBDModel:
    """What the model says right after the token is not a number. Nothing else is touched: a masked key that is not a number
    would be, since 0 times it is not a number either."""
    model_runner = sbd.runner

    def runner(**sizes: Any) -> Any:
        made = model_runner(**sizes)
        model_logits = made.logits

        def logits(inputs: ModelInput) -> Tensor:
            after = inputs.tokens.gather(1, inputs.outputs) == token_id
            found = model_logits(inputs)
            return found.masked_fill((after if found.dim() == 3 else after[inputs.wanted])[..., None], torch.nan)

        made.logits = logits  # type: ignore[method-assign]
        return made

    sbd.runner = runner  # type: ignore[method-assign]
    return sbd


def untrained(sbd: SBDModel) -> SBDModel:
    """The same weights, of a model that has no blocks."""
    free = SBDModel(sbd.model, sbd.tokenizer)
    free.end_of_text_ids, free.draft_text = sbd.end_of_text_ids, sbd.draft_text
    return free


def rows(**fields: Any) -> list[DecodingSettings]:
    base = DecodingSettings(method="sbd", block_size=5, max_new_tokens=16, sampler=SOME, logprobs=1, **fields)
    return [
        base,
        replace(base, method="exact"),
        replace(base, method="ntp"),
        replace(base, temperature=1.0, seed=4),
        replace(base, method="exact", temperature=1.0, seed=4),
        replace(base, sampler=Remembering(), block_size=3),
        replace(base, stop="q"),
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
def test_one_request_is_reported_in_one_line(method: Any, trained_tokenizer: PreTrainedTokenizerBase) -> None:
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


@pytest.mark.in_turn
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


@pytest.mark.parametrize("lookup", [0, 1])
@pytest.mark.parametrize("mode", MODES)
def test_drafts_that_are_not_numbers_fail_no_exact_row(
    mode: str, lookup: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Plain decoding reads no mask token, so one that breaks every pass over a block is nothing to it."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    assert sbd.sbd_config is not None
    spoiled(sbd, sbd.sbd_config.mask_token_id)
    exact = DecodingSettings(max_new_tokens=20, block_size=5, prompt_lookup=lookup)
    settings = [replace(exact, temperature=each) for each in (0.0, 1.0)]
    found = answers(sbd, [prompts[1]] * 2, settings)
    plain = answers(sbd, [prompts[1]] * 2, [replace(each, method="ntp") for each in settings])
    assert [each.token_ids for each in found] == [each.token_ids for each in plain]
    assert {each.finish_reason for each in found} <= {"stop", "length"}


def test_what_stands_behind_a_wrong_draft_fails_no_row(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """A draft text leads into a token that breaks what follows it, and which plain decoding does not write."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    sbd.end_of_text_ids = ()
    plain = DecodingSettings(method="ntp", max_new_tokens=20)
    (wanted,) = answers(sbd, prompts[:1], [plain])
    poison = next(each for each in range(5, 300) if each not in [*prompts[0], *wanted.token_ids])
    written = [*prompts[0], *wanted.token_ids]
    sbd.draft_text = indexed([[*written[n - 2 : n + 1], poison, 9, 9] for n in range(len(prompts[0]), len(written), 3)])
    for model in (untrained(sbd), sbd):
        (found,) = answers(
            spoiled(model, poison), prompts[:1], [replace(plain, method="exact", prompt_lookup=2, block_size=5)]
        )
        assert (found.token_ids, found.finish_reason) == (wanted.token_ids, "length")


@pytest.mark.parametrize("mode", MODES)
def test_exact_fails_where_plain_decoding_does(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """With the same text, at a place within a draft that is right so far; and not at all where a stop string comes before."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    sbd.end_of_text_ids = ()
    whole = answers(sbd, prompts[:1], [DecodingSettings(method="ntp", max_new_tokens=20)])[0].token_ids
    text = [trained_tokenizer.decode(whole[:n]) for n in range(21)]
    place = next(n for n in range(5, 20) if text[n + 1][-1].isalnum() and text[n + 1][-1] not in text[n])
    stop = text[place + 1][-1]
    for model in (untrained(sbd), sbd):
        spoiled(model, whole[place]).draft_text = indexed([[*prompts[0], *whole]])
        for ends in ((), (stop,)):
            exact = DecodingSettings(max_new_tokens=20, block_size=8, prompt_lookup=1, stop=ends)
            ours, theirs = (
                answers(model, prompts[:1], [replace(exact, method=method)])[0]  # type: ignore[arg-type]
                for method in ("exact", "ntp")
            )
            assert ours.token_ids == theirs.token_ids == whole[: place + 1]
            assert (ours.text, ours.finish_reason) == (theirs.text, theirs.finish_reason)
            assert theirs.finish_reason == ("stop" if ends else "error")
            assert ours.passes.decoding < theirs.passes.decoding
