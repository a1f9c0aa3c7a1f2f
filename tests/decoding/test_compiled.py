"""A compiled model decodes what the model decodes, in passes of few sizes, each compiled once."""

from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from conftest import TEXTS
from families import MODES, tiny_sbd
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import Engine, EngineLimits, Request
from setblock.engine.generate import generate_batch
from setblock.errors import SetBlockError
from setblock.model.compiled import compiled_for_sizes
from setblock.model.protocol.draft_text import indexed
from setblock.model.protocol.runtime import fixed_capacity
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")

PROMPTS = [text[:length] for text, length in zip(TEXTS, (12, 50, 3, 30, 20, 9), strict=False)]
OTHERS = [text[:length] for text, length in zip(TEXTS[1:], (40, 2, 33, 17, 52, 8), strict=False)]
SETTINGS = [
    DecodingSettings(method=method, sampler=sampler, block_size=8, max_new_tokens=tokens, temperature=temperature)
    for method, sampler, tokens, temperature in (
        ("sbd", EntropyBounded(gamma=1.0), 21, 0.0),
        ("exact", EntropyBounded(gamma=4.0), 30, 0.0),
        ("ntp", None, 5, 0.0),
        ("sbd", EntropyBounded(gamma=0.0), 8, 1.0),
        ("exact", EntropyBounded(gamma=4.0), 17, 1.0),
        ("sbd", EntropyBounded(gamma=3.0), 40, 0.0),
    )
]


def model(tokenizer: PreTrainedTokenizerBase, family: str = "llama", **options: Any) -> SBDModel:
    layer = {"num_hidden_layers": 1} if family == "llama" else {}  # one, as each is compiled
    sbd = tiny_sbd(family, tokenizer, dtype=torch.float64, **layer, **options)
    sbd.end_of_text_ids = (0, 40, 41)  # answers of random models end sometimes
    return sbd


def decoded(sbd: SBDModel, prompts: list[str], settings: list[DecodingSettings] = SETTINGS) -> list[Any]:
    generations = generate_batch(sbd, prompts, settings=settings, raw=True)
    return [(each.token_ids, each.passes, each.finish_reason) for each in generations]


class Graphs:
    """A backend that generates no code, and keeps the graphs of the model."""

    def __init__(self) -> None:
        self.found: list[torch.fx.GraphModule] = []

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        self.found.append(graph)
        return graph.forward


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        *(pytest.param("llama", mode, marks=pytest.mark.nightly) for mode in MODES),
        ("qwen3", "shifted"),
        pytest.param("gpt2", "unshifted", marks=pytest.mark.nightly),
    ],
)
def test_decodes_the_same_without_compiling_anew(tokenizer: PreTrainedTokenizerBase, family: str, mode: str) -> None:
    """In one batch, every method; rows end at different passes. What comes later has sizes that are there."""
    sbd = model(tokenizer, family, mode=mode)
    expected = [decoded(sbd, prompts) for prompts in (PROMPTS, OTHERS)]
    graphs = Graphs()
    sbd.compile(backend=graphs)
    assert decoded(sbd, PROMPTS) == expected[0]
    assert decoded(sbd, OTHERS) == expected[1]
    assert graphs.found
    with torch.compiler.set_stance("fail_on_recompile"):
        assert decoded(sbd, PROMPTS) == expected[0]
        assert decoded(sbd, OTHERS) == expected[1]


def test_copied_drafts_compile_too_and_plain_generate_goes_on_working(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd, settings = model(tokenizer), [replace(each, prompt_lookup=1) for each in SETTINGS]
    sbd.draft_text = indexed([range(40), *(tokenizer(text).input_ids for text in TEXTS[::-1])])
    expected = decoded(sbd, PROMPTS, settings)
    plain = partial(sbd.model.generate, torch.tensor([[5, 6, 7]]), max_new_tokens=6, do_sample=False, pad_token_id=0)
    plain_expected = plain()
    sbd.compile(backend="eager")
    assert decoded(sbd, PROMPTS, settings) == expected  # passes, too
    assert torch.equal(plain(), plain_expected)


def test_each_size_is_compiled_once(tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    """However many requests there are, and in an engine into which they come one after the other."""
    graphs, sbd = Graphs(), model(tokenizer)
    sbd.compile(backend=graphs)
    engine = Engine(sbd, EngineLimits(max_num_seqs=2))
    for number in range(6):
        engine.submit(Request(str(number), prompts[number % 3], SETTINGS[number]))
    while not engine.is_idle:
        engine.step()
    assert engine.captured is not None
    assert sum(engine.captured.sizes.values()) > 3 * len(engine.captured.sizes)
    assert 0 < len(graphs.found) <= len(engine.captured.sizes)


def test_more_sizes_are_compiled_than_pytorch_allows_by_default() -> None:
    graphs = Graphs()
    function = compiled_for_sizes(lambda values: 2 * values, backend=graphs)
    for length in range(2, 22):
        assert function(torch.ones(length)).tolist() == [2.0] * length
    assert len(graphs.found) == 20


@pytest.mark.nightly  # the compiler takes half a minute
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch warns of what it does itself
def test_inductor_decodes_the_same(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = model(tokenizer)
    settings = [each for each in SETTINGS if each.method == "sbd"]
    expected = decoded(sbd, PROMPTS[:3], settings)
    sbd.compile()
    assert decoded(sbd, PROMPTS[:3], settings) == expected


def test_what_has_no_fixed_sizes_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    falcon = tiny_sbd("falcon", tokenizer, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    with pytest.raises(SetBlockError, match=r"falcon can't be compiled: with requests packed.*; leave out --compile"):
        falcon.compile()
    with pytest.raises(SetBlockError, match="--cuda-graphs needs a model on a CUDA device: this one is on cpu"):
        model(tokenizer).capture()


@given(needed=st.integers(1, 1 << 17))
def test_fixed_capacities_are_few_and_large_enough(needed: int) -> None:
    assert needed <= fixed_capacity(needed) < max(257, 2 * needed)
    assert fixed_capacity(needed) in {1 << power for power in range(8, 18)}
