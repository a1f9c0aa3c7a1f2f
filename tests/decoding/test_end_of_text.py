"""End-of-text inside a block, whichever order the block is filled in.

A fake sampler reveals one chosen place of the block after another. What it reveals is declared to be an end-of-text
afterwards: a second decoding of the same prompt then runs into it at a known pass.
"""

from dataclasses import dataclass

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import MODES, tiny_sbd
from setblock.decoding.generate import OpenBatch, open_batch, stream
from setblock.decoding.naive import naive_decode
from setblock.decoding.samplers import BlockView, Selection
from setblock.decoding.settings import DecodingSettings
from setblock.model.sbd_model import SBDModel

K = 8
ORDERS = {
    "right to left": [7, 6, 5, 4, 3, 2, 1, 0],
    "left to right": [0, 1, 2, 3, 4, 5, 6, 7],
    "middle first": [4, 0, 1, 2, 3, 5, 6, 7],
    "middle first, then its right": [4, 7, 6, 5, 3, 2, 1, 0],
    "ends first": [7, 0, 6, 1, 5, 2, 4, 3],
}


@dataclass(frozen=True)
class InOrder:
    """Reveals the one candidate that comes first in `order`."""

    order: list[int]

    def select(self, block: BlockView) -> Selection:
        candidates = block.candidates
        reveal = torch.zeros_like(candidates)
        for row in range(len(candidates)):
            wanted = [c for c in self.order if c < candidates.shape[1] and candidates[row, c]]
            if wanted:
                reveal[row, wanted[0]] = True
        return Selection(reveal)


def decode(sbd: SBDModel, prompt: list[int], sampler: InOrder, **settings: int) -> tuple[OpenBatch, list]:
    batch = open_batch(sbd, [prompt], [DecodingSettings(block_size=K, sampler=sampler, **settings)])
    return batch, list(batch.steps())


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
    token_ids, passes = naive_decode(sbd, prompt, DecodingSettings(block_size=K, max_new_tokens=2 * K), sampler=sampler)
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
        DecodingSettings(block_size=K, max_new_tokens=2 * K, sampler=sampler),
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
