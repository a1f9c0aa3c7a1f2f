"""What becomes of a sampler that breaks the rules: an error that names it, and not an endless loop."""

from dataclasses import dataclass

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.decoding.generate import generate_batch
from setblock.decoding.samplers import BlockView, EntropyBounded, Selection
from setblock.decoding.settings import DecodingSettings, Method
from setblock.errors import SetBlockError


@dataclass(frozen=True)
class Nothing:
    """Never sure enough."""

    def select(self, block: BlockView) -> Selection:
        return Selection(torch.zeros_like(block.candidates))


@dataclass(frozen=True)
class Everything:
    """Reveals what is revealed already too."""

    def select(self, block: BlockView) -> Selection:
        return Selection(torch.ones_like(block.candidates))


@dataclass(frozen=True)
class OneRow:
    """Forgets all rows but the first."""

    def select(self, block: BlockView) -> Selection:
        reveal = block.candidates.clone()
        reveal[1:] = False
        return Selection(reveal)


@pytest.mark.parametrize("method", ["sbd", "exact"])
@pytest.mark.parametrize("sampler", [Nothing(), Everything(), OneRow()])
def test_names_a_sampler_that_breaks_the_rules(
    sampler: Nothing | Everything | OneRow, method: Method, tokenizer: PreTrainedTokenizerBase
) -> None:
    sbd = tiny_sbd("llama", tokenizer)
    settings = [
        DecodingSettings(method=method, sampler=each, block_size=4, max_new_tokens=9)
        for each in (sampler, sampler, EntropyBounded())
    ]
    with pytest.raises(
        SetBlockError, match=rf"sampler .*{type(sampler).__name__}\(\) must reveal at least one candidate"
    ):
        generate_batch(sbd, ["a", "b c", "d"], settings=settings, raw=True)
