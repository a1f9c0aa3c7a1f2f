"""Architectures that can't be decoded in blocks are refused with the reason."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from families import FAMILIES
from setblock.errors import SetBlockError
from setblock.model.loading.loading import load, refuse_unsupported

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "t5": ({}, "t5 is an encoder-decoder"),
    "bart": ({}, "bart is an encoder-decoder"),
    "mamba": ({}, "mamba keeps a recurrent state"),
    "rwkv": ({}, "rwkv keeps a recurrent state"),
    "jamba": ({}, "jamba keeps a recurrent state"),
    "qwen3_next": ({}, "qwen3_next keeps a recurrent state"),
    "falcon_h1": ({}, "falcon_h1 keeps a recurrent state"),
    "lfm2": ({"full_attn_idxs": [1]}, "lfm2: layer type 'conv' is not supported"),
    "minimax": ({}, "minimax: layer type 'linear_attention' is not supported"),
    "llama4_text": ({}, "llama4_text: layer type 'chunked_attention' is not supported"),
    "bloom": ({}, "bloom uses ALiBi"),
    "mpt": ({}, "mpt uses ALiBi"),
    "falcon": ({"alibi": True}, "falcon uses ALiBi"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str, tmp_path: Path) -> None:
    fields, message = REFUSED[name]
    config = AutoConfig.for_model(name, **fields)
    with pytest.raises(SetBlockError, match=message):
        refuse_unsupported(config)
    config.save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SetBlockError, match=message):
        load(tmp_path)


@pytest.mark.parametrize("family", FAMILIES)
def test_not_refused(family: str) -> None:
    refuse_unsupported(AutoConfig.for_model(family, **FAMILIES[family]))
