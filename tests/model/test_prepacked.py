"""A prepacked model computes what the model computes, decodes by every method, and is still the same checkpoint."""

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from transformers import PreTrainedTokenizerBase

from conftest import TEXTS
from families import tiny_sbd
from setblock.decoding.generate import generate_batch
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings import DecodingSettings
from setblock.errors import SetBlockError
from setblock.evaluation.fingerprint import model_fingerprint
from setblock.model.prepacked import PrepackedLinear

DTYPES = [torch.float32]
if torch.ops.mkldnn._is_mkldnn_bf16_supported():
    DTYPES.append(torch.bfloat16)


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


@pytest.mark.parametrize("family", ["llama", "gemma2", "qwen2", "gpt2", "mixtral"])
def test_decodes_the_same(family: str, tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd(family, tokenizer, mode="shifted")
    settings = [
        DecodingSettings(method=method, sampler=EntropyBounded(gamma=1.0), block_size=8, max_new_tokens=24)
        if method != "ntp"
        else DecodingSettings(method="ntp", max_new_tokens=24)
        for method in ("sbd", "exact", "ntp", "exact")
    ]

    def decoded() -> list[object]:
        answers = generate_batch(sbd, [text[:20] for text in TEXTS[:4]], settings=settings, raw=True)
        return [(each.token_ids, each.passes) for each in answers]

    expected = decoded()
    sbd.prepack()
    assert isinstance(sbd.model.get_output_embeddings(), PrepackedLinear)
    assert not [module for module in sbd.model.modules() if type(module) is nn.Linear]
    assert decoded() == expected


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
    with pytest.raises(SetBlockError, match="can't be compiled"):
        sbd.compile(backend="eager")
    compiled = tiny_sbd("llama", tokenizer)
    compiled.compile(backend="eager")
    with pytest.raises(SetBlockError, match="can't be prepacked"):
        compiled.prepack()
    with pytest.raises(SetBlockError, match="float64 weights can't be prepacked"):
        tiny_sbd("llama", tokenizer, dtype=torch.float64).prepack()
