"""What becomes of a sampler that breaks the rules: an error that names it, and not an endless loop."""

from collections.abc import Iterator
from dataclasses import dataclass

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.decoding.samplers import SAMPLERS, BlockView, EntropyBounded, Factor, Selection
from setblock.decoding.samplers.named import own_rules
from setblock.decoding.settings.table import DecodingSettings, Method
from setblock.engine.generate import generate_batch
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


@dataclass(frozen=True)
class Bare:
    """Returns the positions alone."""

    def select(self, block: BlockView) -> torch.Tensor:
        return block.candidates


def test_a_rule_that_returns_a_tensor_is_refused_with_what_to_return(tokenizer: PreTrainedTokenizerBase) -> None:
    settings = DecodingSettings(method="sbd", sampler=Bare(), block_size=4)  # type: ignore[arg-type]
    with pytest.raises(SetBlockError, match=r"sampler .*Bare\(\) must return Selection\(reveal\), not a Tensor"):
        generate_batch(tiny_sbd("llama", tokenizer), ["a"], settings=settings, raw=True)


@pytest.fixture
def replaced() -> Iterator[None]:
    """A rule of the library whose name stands for another."""
    SAMPLERS["factor"] = Nothing
    yield
    del SAMPLERS["factor"]


@pytest.mark.usefixtures("replaced")
def test_a_rule_under_a_name_of_the_library_is_checked_too(tokenizer: PreTrainedTokenizerBase) -> None:
    settings = DecodingSettings(method="sbd", sampler=SAMPLERS["factor"](), block_size=4, max_new_tokens=9)
    with pytest.raises(SetBlockError, match=r"sampler .*Nothing\(\) must reveal at least one candidate"):
        generate_batch(tiny_sbd("llama", tokenizer), ["a"], settings=settings, raw=True)
    assert own_rules()["factor"].load() is Factor


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
