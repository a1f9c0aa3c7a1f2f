"""A prepacked model computes what the model computes, decodes by every method, and is still the same checkpoint."""

from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import PreTrainedTokenizerBase

from conftest import TEXTS
from families import tiny_sbd
from setblock.decoding.drafts.draft_length import PassTimes
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine import Engine, Request
from setblock.engine.generate import generate, generate_batch
from setblock.errors import SetBlockError, SetBlockWarning
from setblock.evaluation.sweeps.fingerprint import model_fingerprint
from setblock.model.weights import _WEIGHTS, PrepackedLinear, is_supported

DTYPES = [dtype for dtype in (torch.float32, torch.bfloat16, torch.float16) if is_supported(dtype)]
PROMPT = [1, 2, 3, 4, 5]

pytestmark = pytest.mark.skipif(not DTYPES, reason="this PyTorch has no oneDNN")


@given(data=st.data())
def test_a_layer_is_the_layer(data: st.DataObject) -> None:
    """Of any sizes, over inputs of any shape, contiguous or not, also none at all."""
    features, outputs = data.draw(st.integers(1, 70)), data.draw(st.integers(1, 70))
    bias, dtype = data.draw(st.booleans()), data.draw(st.sampled_from(DTYPES))
    shape = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=3))
    torch.manual_seed(data.draw(st.integers(0, 99)))
    linear = nn.Linear(features, outputs, bias=bias, dtype=dtype)
    hidden = torch.randn(*shape[:-1], 2 * shape[-1], features, dtype=dtype)[..., ::2, :]
    with torch.inference_mode():
        expected = linear(hidden)
        torch.testing.assert_close(PrepackedLinear(linear)(hidden), expected)
    assert expected.shape == (*shape, outputs)


@pytest.mark.parametrize(
    ("family", "layers", "most_stays"),
    [
        ("llama", 2 * 7 + 1, False),
        ("gemma2", 2 * 7 + 1, False),
        ("qwen2", 2 * 7 + 1, False),
        ("gpt2", 1, True),  # the others are Conv1D
        ("mixtral", 2 * 4 + 1, True),  # experts are kept in one tensor
    ],
)
def test_decodes_the_same(family: str, layers: int, most_stays: bool, tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd(family, tokenizer, mode="shifted")
    settings = [
        DecodingSettings(
            method=method, sampler=EntropyBounded(gamma=1.0), block_size=8, max_new_tokens=24, drafts="fixed"
        )
        if method != "ntp"
        else DecodingSettings(method="ntp", max_new_tokens=24)
        for method in ("sbd", "exact", "ntp", "exact")
    ]

    def decoded() -> list[object]:
        answers = generate_batch(sbd, [text[:20] for text in TEXTS[:4]], settings=settings, raw=True)
        return [(each.token_ids, each.passes) for each in answers]

    expected = decoded()
    with pytest.warns(SetBlockWarning, match="gains little here: [5-9].% of") if most_stays else nullcontext():
        sbd.prepack()
    assert isinstance(sbd.model.get_output_embeddings(), PrepackedLinear)
    assert sum(isinstance(module, PrepackedLinear) for module in sbd.model.modules()) == layers
    assert not [module for module in sbd.model.modules() if type(module) is nn.Linear]
    assert decoded() == expected


@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="this processor has no products of bfloat16")
def test_a_token_alone_is_computed_with_as_many_rows_as_are_fastest(tokenizer: PreTrainedTokenizerBase) -> None:
    """Alone and in the engine. Its text is the same, whatever fills the pass."""
    sbd, rows = tiny_sbd("llama", tokenizer, mode="shifted"), set[int]()
    sbd.model.to(torch.bfloat16)
    settings = DecodingSettings(method="ntp", max_new_tokens=8)

    def decoded() -> list[object]:
        rows.clear()
        gate: nn.Module = sbd.model.get_submodule("model.layers.1.mlp.gate_proj")
        with gate.register_forward_pre_hook(lambda _, args: rows.add(args[0].shape[:-1].numel())):
            engine, answers = Engine(sbd), [generate(sbd, PROMPT, settings=settings)]
            engine.submit(Request("alone", PROMPT, settings))
            while not engine.is_idle:
                answers += [each.generation for each in engine.step() if each.generation is not None]
        return [each.token_ids for each in answers]

    expected = decoded()
    assert expected[0] == expected[1]
    assert rows == {2, 5}
    sbd.prepack()
    assert decoded() == expected
    assert rows == {4, 5}


@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="this processor has no products of bfloat16")
@pytest.mark.usefixtures("longest_drafts")
def test_seconds_are_learned_of_the_tokens_that_layers_get(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alone and in the engine, with what fills a pass up."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", dtype=torch.bfloat16)
    sbd.prepack()
    rows, timed, settings = list[int](), list[int](), DecodingSettings(block_size=8, max_new_tokens=32)
    monkeypatch.setattr(PassTimes, "update", lambda self, tokens, seconds: timed.append(tokens))
    gate: nn.Module = sbd.model.get_submodule("model.layers.1.mlp.gate_proj")
    with gate.register_forward_pre_hook(lambda _, args: rows.append(args[0].shape[:-1].numel())):
        generate(sbd, PROMPT, settings=settings)
        in_engine, engine = len(rows), Engine(sbd)
        for number in range(3):
            engine.submit(Request(str(number), [*PROMPT, number], settings))
        while not engine.is_idle:
            engine.step()
    assert timed == rows[1:in_engine] + rows[in_engine + 1 :]  # all but the passes over prompts


@pytest.mark.nightly  # the compiler takes a minute
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # PyTorch warns of what it does itself
@pytest.mark.skipif(torch.bfloat16 not in DTYPES, reason="this processor has no products of bfloat16")
def test_compiled_by_inductor_exact_mode_is_plain_decoding_to_the_bit(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", dtype=torch.bfloat16, num_hidden_layers=1)
    sbd.prepack()
    sbd.compile()
    plain, exact = (
        generate_batch(sbd, [TEXTS[0][:20]], settings=each, raw=True)[0]
        for each in (
            DecodingSettings(method="ntp", max_new_tokens=32),
            DecodingSettings(method="exact", block_size=8, max_new_tokens=32),
        )
    )
    assert exact.token_ids == plain.token_ids


@pytest.mark.nightly  # tests of adapters and of the command line trace a prepacked model, too
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_traced_it_decodes_the_same(dtype: torch.dtype, tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", dtype=dtype, num_hidden_layers=1)
    sbd.prepack()
    settings = DecodingSettings(method="exact", block_size=8, max_new_tokens=24)
    expected = generate_batch(sbd, [TEXTS[0][:20]], settings=settings, raw=True)[0].token_ids
    sbd.compile(backend="eager")
    assert generate_batch(sbd, [TEXTS[0][:20]], settings=settings, raw=True)[0].token_ids == expected


def test_the_shape_is_known_to_a_compiler() -> None:
    linear = PrepackedLinear(nn.Linear(6, 10, dtype=DTYPES[0]))
    hidden = torch.randn(2, 3, 6, dtype=DTYPES[0])
    arguments = (hidden, linear.bias.detach(), linear._number, 10)
    torch.library.opcheck(
        torch.ops.setblock.prepacked_linear.default, arguments, test_utils=("test_schema", "test_faketensor")
    )


def test_a_layers_weight_goes_with_it() -> None:
    linear = PrepackedLinear(nn.Linear(6, 10, dtype=DTYPES[0]))
    number = linear._number
    assert number in _WEIGHTS
    del linear
    assert number not in _WEIGHTS


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("tied", [False, True])
def test_is_the_same_checkpoint(tokenizer: PreTrainedTokenizerBase, dtype: torch.dtype, tied: bool) -> None:
    """To the bit, so that what was measured of it is known to be of it."""
    sbd = tiny_sbd("llama", tokenizer, dtype=dtype, tie_word_embeddings=tied)
    before, fingerprint = (
        {name: weight.clone() for name, weight in sbd.model.state_dict().items()},
        model_fingerprint(sbd),
    )
    sbd.prepack()
    after = sbd.model.state_dict()
    assert set(after) == set(before)
    for name, weight in after.items():
        assert weight.dtype == dtype
        assert torch.equal(weight, before[name]), name
    assert model_fingerprint(sbd) == fingerprint


def test_what_it_does_not_go_with(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    sbd = tiny_sbd("llama", tokenizer)
    sbd.prepack()
    sbd.prepack()  # again: nothing
    with pytest.raises(SetBlockError, match="prepacked can't be saved"):
        sbd.save(tmp_path / "model")
    with pytest.raises(SetBlockError, match="prepacked can't be trained"):
        sbd.prepare_for_training(block_sizes=[4], logit_shift=True)
    compiled = tiny_sbd("llama", tokenizer)
    compiled.compile(backend="eager")
    with pytest.raises(SetBlockError, match="prepack it first, then compile it"):
        compiled.prepack()
    with pytest.raises(SetBlockError, match="can't be moved or cast"):
        sbd.model.to(torch.float64)
    on_no_cpu = tiny_sbd("llama", tokenizer)
    on_no_cpu.model.to("meta")
    with pytest.raises(SetBlockError, match="the model is on meta"):
        on_no_cpu.prepack()
    with pytest.raises(SetBlockError, match="float64 weights can't be prepacked"):
        tiny_sbd("llama", tokenizer, dtype=torch.float64).prepack()


def test_layers_that_are_shared_stay_shared(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd("llama", tokenizer)
    layers = sbd.model.model.layers
    layers[1].mlp.up_proj = layers[0].mlp.up_proj
    layers[0].mlp.gate_proj = layers[0].mlp.up_proj  # under two names in one module
    sbd.prepack()
    assert layers[1].mlp.up_proj is layers[0].mlp.up_proj is layers[0].mlp.gate_proj
    assert isinstance(layers[0].mlp.gate_proj, PrepackedLinear)
