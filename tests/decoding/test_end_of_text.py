"""End-of-text inside a block, whichever order the block is filled in.

A fake sampler reveals one chosen place of the block after another. What it reveals is declared to be an end-of-text
afterwards: a second decoding of the same prompt then runs into it at a known pass.
"""

import math
from dataclasses import replace
from typing import Any

import pytest
from transformers import PreTrainedTokenizerBase

from answers import ORDERS, InOrder, answers
from families import MODES, tiny_sbd
from measuring.static_batch import StaticBatch, static_batch
from naive import full_logits, naive_decode
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import stream
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

K = 8


def decode(sbd: SBDModel, prompt: list[int], sampler: InOrder, **settings: int) -> tuple[StaticBatch, list]:
    batch = static_batch(sbd, [prompt], [DecodingSettings(method="sbd", block_size=K, sampler=sampler, **settings)])
    return batch, list(batch.steps())


@pytest.mark.in_turn
@pytest.mark.parametrize("at", [0, 1, 4, 6, 7])
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("mode", MODES)
def test_text_is_filled_before_it_and_nothing_leaks_after_it(
    mode: str, order: str, at: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, sampler = tiny_sbd("llama", trained_tokenizer, mode=mode), InOrder(ORDERS[order])
    sbd.end_of_text_ids = ()
    # The token at `at` of the second block becomes the end-of-text, for a prompt whose first block has no such token
    for prompt in (prompts[0][n:] for n in range(len(prompts[0]))):
        batch, _ = decode(sbd, prompt, sampler, max_new_tokens=2 * K)
        without = batch.generation(0)
        end = without.token_ids[K + at]
        if end not in without.token_ids[:K]:
            break
    assert without.finish_reason == "length"
    sbd.end_of_text_ids = (end,)
    batch, steps = decode(sbd, prompt, sampler, max_new_tokens=2 * K)
    generation = batch.generation(0)
    token_ids, passes = naive_decode(
        sbd,
        prompt,
        DecodingSettings(method="sbd", block_size=K, max_new_tokens=2 * K),
        sampler=sampler,
        forward=full_logits,
    )
    assert generation.token_ids == token_ids
    assert generation.passes.decoding == passes
    assert generation.finish_reason == "stop"

    # One end-of-text, at the end; the text before it is whole
    assert generation.token_ids.count(end) == 1
    assert generation.token_ids[-1] == end
    assert generation.text == trained_tokenizer.decode(generation.token_ids[:-1], skip_special_tokens=True)
    assert all(pass_number >= 0 for pass_number in generation.revealed_by)
    # The row finishes with the pass that reveals the last token up to the end-of-text, not later
    assert len(steps) == 1 + max(generation.revealed_by)
    # From the pass that reveals the end-of-text on, nothing after it is revealed
    ended = False
    for step in steps[generation.revealed_by[-1] :]:
        late = step.revealed[0] & (step.positions[0] >= len(prompt) + len(generation.token_ids))
        assert not (ended and bool(late.any()))
        ended = True


def test_early_end_saves_passes(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    """Revealed first in the middle of a block, an end-of-text leaves only what stands before it to fill."""
    sbd, sampler = tiny_sbd("llama", trained_tokenizer), InOrder(ORDERS["middle first, then its right"])
    sbd.end_of_text_ids = ()
    for prompt in (prompts[0][n:] for n in range(len(prompts[0]))):  # until one has no second end-of-text further left
        sbd.end_of_text_ids = ()
        batch, steps = decode(sbd, prompt, sampler, max_new_tokens=K)
        assert len(steps) == 1 + K
        sbd.end_of_text_ids = (batch.generation(0).token_ids[4],)
        batch, steps = decode(sbd, prompt, sampler, max_new_tokens=K)
        if len(batch.generation(0).token_ids) == 5:
            break
    assert len(steps) == 1 + 5
    assert batch.generation(0).revealed_by == [5, 4, 3, 2, 1]


def test_a_second_end_of_text_further_left_wins(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, sampler = tiny_sbd("llama", trained_tokenizer), InOrder(ORDERS["right to left"])
    sbd.end_of_text_ids = ()
    batch, _ = decode(sbd, prompts[1], sampler, max_new_tokens=K)
    tokens = batch.generation(0).token_ids
    sbd.end_of_text_ids = (tokens[6], tokens[2])
    batch, _ = decode(sbd, prompts[1], sampler, max_new_tokens=K)
    first = min(tokens.index(tokens[6]), tokens.index(tokens[2]))
    assert batch.generation(0).token_ids == tokens[: first + 1]


def test_stream_never_shows_what_an_end_of_text_cuts_off(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd, sampler = tiny_sbd("llama", trained_tokenizer), InOrder(ORDERS["left to right"])
    prompt, settings = (
        trained_tokenizer.decode(prompts[1]),
        DecodingSettings(method="sbd", block_size=K, max_new_tokens=2 * K, sampler=sampler),
    )
    sbd.end_of_text_ids = ()
    *_, last = stream(sbd, prompt, settings=settings, raw=True)
    assert last.generation is not None
    sbd.end_of_text_ids = (last.generation.token_ids[K + 2],)
    chunks = list(stream(sbd, prompt, settings=settings, raw=True))
    generation = chunks[-1].generation
    assert generation is not None
    assert generation.finish_reason == "stop"
    assert "".join(chunk.text for chunk in chunks) == generation.text


@pytest.mark.in_turn
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("method", ["sbd", "exact"])
def test_stop_token_ids_end_an_answer_as_an_end_of_text_does(
    method: Any, order: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Each row by its own: what ends one row's answer is a token like any other in the next row's."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(method=method, block_size=K, max_new_tokens=2 * K, sampler=InOrder(ORDERS[order]))
    whole = answers(sbd, prompts[:1], [settings])[0]
    ends = [whole.token_ids[n] for n in (0, 3, 7, 8, 12)]
    rows = [replace(settings, stop_token_ids=(end,)) for end in ends]
    stopped = answers(sbd, prompts[:1] * (len(rows) + 1), [*rows, settings])
    assert stopped[-1].token_ids == whole.token_ids
    for end, row, generation in zip(ends, rows, stopped, strict=False):
        sbd.end_of_text_ids = (end,)
        own = answers(sbd, prompts[:1], [settings])[0]
        sbd.end_of_text_ids = ()
        assert (generation.token_ids, generation.text) == (own.token_ids, own.text)
        assert (generation.passes, generation.revealed_by) == (own.passes, own.revealed_by)
        assert generation.finish_reason == "stop"
        assert generation.token_ids.index(end) == generation.num_tokens - 1
        assert generation.text == trained_tokenizer.decode(generation.token_ids[:-1], skip_special_tokens=True)
        if method == "exact":
            assert generation.token_ids == whole.token_ids[: whole.token_ids.index(end) + 1]
            ntp = answers(sbd, prompts[:1], [replace(row, method="ntp")])[0]
            assert (ntp.token_ids, ntp.text) == (generation.token_ids, generation.text)


@pytest.mark.parametrize("at", range(1, K))
def test_an_end_of_text_in_a_wrong_draft_ends_nothing(
    at: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Exact mode, on a model whose drafts are nearly all wrong: what a draft holds is declared to be an end-of-text."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(method="exact", block_size=K, max_new_tokens=2 * K, sampler=EntropyBounded(math.inf))
    batch = static_batch(sbd, prompts[1:2], [settings])
    steps = list(batch.steps())
    answer = batch.generation(0).token_ids
    drafted = next(step for step in steps[1:] if bool(step.revealed[0, at]))
    end = int(drafted.token_ids[0, at])
    ended = replace(settings, stop_token_ids=(end,))
    ntp = answers(sbd, prompts[1:2], [replace(ended, method="ntp")])[0]
    exact = answers(sbd, prompts[1:2], [ended])[0]
    assert exact.token_ids == ntp.token_ids
    assert exact.finish_reason == ntp.finish_reason
    if end not in answer:
        assert exact.token_ids == answer
