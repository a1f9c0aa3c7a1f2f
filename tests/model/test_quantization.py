"""A model in int8 decodes by every method, and can't be trained or saved."""

import re
import sys
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from conftest import TEXTS
from families import tiny_sbd
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate_batch
from setblock.errors import SetBlockError, install_command
from setblock.model.loading.loading import load
from setblock.model.weights import quantize

SETTINGS = DecodingSettings(method="sbd", block_size=8, max_new_tokens=24)


@pytest.fixture
def checkpoint(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> Path:
    tiny_sbd("llama", tokenizer, mode="shifted").save(tmp_path / "model")
    return tmp_path / "model"


@pytest.mark.parametrize("family", ["llama", "gemma2", "mixtral"])
def test_exact_mode_is_the_quantized_models_own_greedy_text(family: str, tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd(family, tokenizer, mode="shifted")
    before = sbd.model(torch.tensor([[5, 6, 7]])).logits
    quantize(sbd.model)
    after = sbd.model(torch.tensor([[5, 6, 7]])).logits
    assert not torch.equal(before, after), "nothing was quantised"
    assert (before - after).abs().mean() < 0.1 * before.abs().mean()
    prompts = [text[:20] for text in TEXTS]
    texts = {
        method: [
            answer.token_ids
            for answer in generate_batch(
                sbd, prompts, settings=DecodingSettings(method=method, block_size=8, max_new_tokens=24), raw=True
            )
        ]
        for method in ("exact", "ntp")
    }
    assert texts["exact"] == texts["ntp"]


def test_loads_in_int8(checkpoint: Path) -> None:
    sbd = load(checkpoint, quantization="int8")
    assert "Int8" in type(sbd.model.get_output_embeddings().weight).__name__
    assert sbd.model.get_input_embeddings().weight.dtype == torch.float32
    assert generate_batch(sbd, ["What"], settings=SETTINGS)[0].num_tokens > 0


def test_quantized_weights_are_not_trained_or_saved(checkpoint: Path, tmp_path: Path) -> None:
    sbd = load(checkpoint, quantization="int8")
    with pytest.raises(SetBlockError, match="int8 can't be saved"):
        sbd.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(SetBlockError, match="int8 can't be trained"):
        sbd.prepare_for_training(block_sizes=[4], logit_shift=True)


def test_says_what_to_install(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torchao.quantization", None)
    with pytest.raises(SetBlockError, match=re.escape(install_command("quantize"))):
        load(checkpoint, quantization="int8")
