"""A compiled model decodes what the model decodes, in shapes that it has met before."""

from dataclasses import replace
from functools import partial
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import _disable_current_modes
from transformers import PreTrainedTokenizerBase

from answers import reciting
from conftest import TEXTS
from families import MODES, tiny_sbd
from measuring.operations import Operations
from measuring.synchronisations import as_on_an_accelerator
from setblock.data.tokenizer import train_tokenizer
from setblock.decoding.generate import generate_batch, static_batch
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings, Method, RequestParams
from setblock.decoding.state.joining import open_state
from setblock.decoding.step.inputs import fixed_sizes, plan_pass
from setblock.model.protocol.draft_text import indexed
from setblock.model.protocol.runtime import RowSchedule, Runner, fixed_capacity, identity
from setblock.model.runners import forward
from setblock.model.runners.forward import CompiledModel
from setblock.model.sbd_model import SBDModel

pytestmark = pytest.mark.usefixtures("longest_drafts")


def doubled(values: torch.Tensor) -> torch.Tensor:
    return 2 * values


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


@pytest.mark.parametrize(
    ("family", "mode"),
    [
        *(pytest.param("llama", mode, marks=pytest.mark.nightly) for mode in MODES),
        ("gemma2", "shifted"),
        pytest.param("gpt2", "unshifted", marks=pytest.mark.nightly),
    ],
)
def test_decodes_the_same_without_compiling_anew(tokenizer: PreTrainedTokenizerBase, family: str, mode: str) -> None:
    """In one batch, every method; rows end at different passes. What comes later is padded to shapes that are there."""
    sbd = model(tokenizer, family, mode=mode)
    expected = [decoded(sbd, prompts) for prompts in (PROMPTS, OTHERS)]
    sbd.compile(backend="eager")  # traces and guards as any backend does, and generates no code
    assert decoded(sbd, PROMPTS) == expected[0]
    with torch.compiler.set_stance("fail_on_recompile"):
        assert decoded(sbd, OTHERS) == expected[1]
        assert decoded(sbd, PROMPTS) == expected[0]


def test_copied_drafts_compile_too_and_plain_generate_goes_on_working(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd, settings = model(tokenizer), [replace(each, prompt_lookup=1) for each in SETTINGS]
    sbd.draft_text = indexed([range(40), *(tokenizer(text).input_ids for text in TEXTS[::-1])])
    expected = [decoded(sbd, prompts, settings) for prompts in (PROMPTS, OTHERS)]
    plain = partial(sbd.model.generate, torch.tensor([[5, 6, 7]]), max_new_tokens=6, do_sample=False, pad_token_id=0)
    plain_expected = plain()
    sbd.compile(backend="eager")
    assert decoded(sbd, PROMPTS, settings) == expected[0]  # passes, too
    with torch.compiler.set_stance("fail_on_recompile"):
        assert decoded(sbd, OTHERS, settings) == expected[1]
    assert torch.equal(plain(), plain_expected)


@pytest.mark.filterwarnings("ignore")  # PyTorch says that it continues uncompiled
def test_an_older_pytorch_continues_uncompiled_beyond_its_eight_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forward, "_limits", dict)
    function = CompiledModel(torch.nn.Identity(), backend="eager").function(doubled)
    for length in range(1, 12):
        assert function(torch.ones(length)).tolist() == [2.0] * length


def test_compiles_once_for_each_shape(tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch) -> None:
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        if any("linear" in str(node.target) for node in graph.graph.nodes):  # the model's
            graphs.append(graph)
        return graph.forward

    sbd = model(tokenizer)
    sbd.compile(backend=backend)
    # What is between the passes, which takes as long to compile, is left as it is
    monkeypatch.setattr(sbd.compiled, "function", identity)
    settings = DecodingSettings(method="sbd", sampler=EntropyBounded(gamma=1.0), block_size=8, max_new_tokens=32)
    for prompt in PROMPTS:
        generate_batch(sbd, [prompt], settings=settings, raw=True)
    assert len(graphs) == 2, "block pass, and commit with first pass"


GRAPHS = {"sbd": 7, "exact": 14, "ntp": 5}
"""Of a batch size, method and rounded length: of the model, and of what runs between its passes."""


@pytest.mark.parametrize("method", [pytest.param("sbd", marks=pytest.mark.nightly), "exact", "ntp"])
def test_another_prompt_length_batch_or_bound_compiles_nothing_anew(
    method: Method, tokenizer: PreTrainedTokenizerBase
) -> None:
    """And of a compiled pass, few operations run outside of the graphs. Batches are filled up to a power of two."""
    graphs: list[torch.fx.GraphModule] = []

    def backend(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Any:
        graphs.append(graph)
        return graph.forward

    sbd = model(tokenizer)
    sbd.end_of_text_ids = ()
    sbd.compile(backend=backend)
    settings = DecodingSettings(method=method, sampler=EntropyBounded(4.0), block_size=8, max_new_tokens=40)
    for tokens in (40, 6):  # passes over two blocks, and over what is left for one
        static_batch(sbd, [[5] * 9] * 4, [replace(settings, max_new_tokens=tokens)] * 4).run()
    first = len(graphs)
    assert 3 < first <= GRAPHS[method]
    for rows, length, gamma, tokens in ((4, 9, 1.0, 40), (3, 30, 4.0, 40), (3, 70, 0.0, 33)):
        each = replace(settings, sampler=EntropyBounded(gamma), max_new_tokens=tokens)
        static_batch(sbd, [[5] * length] * rows, [each] * rows).run()
    assert len(graphs) == first

    compiled = sbd.compiled
    assert compiled is not None
    function = compiled.function

    def hidden(each: Any) -> Any:
        def run(*args: Any) -> Any:
            with _disable_current_modes():  # what is in a graph is not counted, nor does counting compile it anew
                return function(each)(*args)

        return run

    with as_on_an_accelerator(), patch.object(compiled, "function", hidden):
        batch = static_batch(sbd, [[5] * 9] * 3, [settings] * 3)
        steps = batch.steps()
        next(steps)
        with Operations(sbd.model) as operations:
            passes = sum(1 for _ in steps)
    assert operations.total / passes <= 36, operations.counts


@pytest.mark.nightly  # the compiler takes half a minute
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch warns of what it does itself
def test_inductor_decodes_the_same(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = model(tokenizer)
    settings = [each for each in SETTINGS if each.method == "sbd"]
    expected = decoded(sbd, PROMPTS[:3], settings)
    sbd.compile()
    assert decoded(sbd, PROMPTS[:3], settings) == expected


@given(k=st.integers(1, 64), method=st.sampled_from(["sbd", "exact", "ntp"]), data=st.data())
def test_fixed_sizes_are_few_and_large_enough(k: int, method: Any, data: st.DataObject) -> None:
    size = 1 if method == "ntp" else k
    needed = data.draw(st.integers(1, 2 * size))
    drafts = data.draw(st.sampled_from(["fixed", "adaptive"]))
    params = RequestParams(DecodingSettings(method=method, drafts=drafts), size, 5, 5 + 3 * k, ())
    state = open_state([[1] * 5], [params], sbd_config=None, device=torch.device("cpu"))
    queries, places, outputs = fixed_sizes(state.params, needed)
    assert needed <= queries in (1, size, 2 * size)
    assert places == 1  # nothing is fed as a block
    assert outputs == (size - 1 if method == "exact" and queries > 1 else 0)


@given(k=st.integers(1, 64), data=st.data())
def test_a_plan_is_as_small_as_can_be_or_fixed(k: int, data: st.DataObject) -> None:
    params = RequestParams(DecodingSettings("sbd"), block_size=k, prompt_length=5, limit=5 + 3 * k, ends=())
    state = open_state([[1] * 5] * 3, [params] * 3, sbd_config=None, device=torch.device("cpu"))
    ends = data.draw(st.lists(st.integers(5, 5 + 2 * k), min_size=3, max_size=3).filter(lambda ends: max(ends) > 5))
    schedules = [RowSchedule(5, end, 5, is_prefill=False) for end in ends]
    runners = [SimpleNamespace(fixed_keys=keys, fuses_commit=True) for keys in (None, 256)]
    tight, fixed = (plan_pass(state, schedules, cast("Runner", each)) for each in runners)
    assert (tight.queries, tight.visible, tight.is_static) == (max(ends) - 5, max(ends), False)
    assert tight.rows.tolist() == [row for row, end in enumerate(ends) if end > 5]
    assert tight.queries <= fixed.queries in (k, 2 * k)
    assert (fixed.visible, fixed.is_static, len(fixed.rows)) == (256, True, 3)
    prefill = [scheduled._replace(is_prefill=True) for scheduled in schedules]
    assert plan_pass(state, prefill, cast("Runner", runners[1])).is_static is False


@given(needed=st.integers(1, 1 << 17))
def test_fixed_capacities_are_few_and_large_enough(needed: int) -> None:
    assert needed <= fixed_capacity(needed) < max(257, 2 * needed)
    assert fixed_capacity(needed) in {1 << power for power in range(8, 18)}


def test_rows_that_fill_a_batch_up_leave_the_first_ones_text_alone() -> None:
    """A compiled batch of three rows gets a fourth, which has ended. Text comes in halves of characters."""
    tokenizer = train_tokenizer(["Tom has 12 apples."], vocab_size=270)
    text = "n\u00e9e \U0001f44d\U0001f3fd \u2014"
    prompt = tokenizer("Tom has").input_ids
    sbd = reciting(tokenizer, [*tokenizer(text).input_ids, tokenizer.eos_token_id], after=len(prompt))
    sbd.compile(backend="eager")
    settings = DecodingSettings(method="ntp", max_new_tokens=60)
    batch = static_batch(sbd, [prompt] * 3, [settings] * 3)
    assert batch.state.batch == 4
    texts = [""] * 3
    for step in batch.steps():
        new = batch.new_texts(batch.outputs(step))
        texts = [before + piece for before, piece in zip(texts, new, strict=False)]
    assert texts == [batch.generation(row).text for row in range(3)] == [text] * 3
