"""Architectures that can't be decoded in blocks are refused with the reason."""

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from families import FAMILIES, tiny_sbd
from setblock.errors import SetBlockError
from setblock.model.loading.loading import load, refuse_unsupported

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "t5": ({}, "t5 is an encoder-decoder"),
    "bart": ({}, "bart is an encoder-decoder"),
    "rwkv": ({}, "rwkv keeps a recurrent state outside of Transformers' cache"),
    "qwen4_exp_text": ({}, "qwen4_exp_text: its cache has layers of type 'indexed_attention', which can't be put back"),
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


@pytest.mark.parametrize(
    ("size", "value"), [("num_hidden_layers", 1_000_000), ("num_hidden_layers", -1), ("vocab_size", 10**10)]
)
def test_a_size_that_is_no_model_s(size: str, value: int, tmp_path: Path) -> None:
    """Before a model of that size is made: a million layers take hours."""
    config = AutoConfig.for_model("llama")
    config.save_pretrained(tmp_path)
    content = json.loads((tmp_path / "config.json").read_text()) | {size: value}
    (tmp_path / "config.json").write_text(json.dumps(content))
    (tmp_path / "model.safetensors").touch()
    with pytest.raises(SetBlockError, match=rf"{size} in the config must be between 1 and \d+, not {value}"):
        load(tmp_path)


def test_experts_of_other_shapes(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """Transformers puts them together as it loads them, and tells what is wrong in a report."""
    tiny_sbd("mixtral", tokenizer).save(tmp_path)
    weights = load_file(tmp_path / "model.safetensors")
    name = next(name for name in weights if "experts.0.w1" in name)
    weights[name] = weights[name].T.contiguous()
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(SetBlockError, match="some of its weights have other shapes than by its config"):
        load(tmp_path)


def test_a_weight_that_was_never_made(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is on no device, and moving the model to one is not what went wrong."""
    tiny_sbd("llama", tokenizer).save(tmp_path)
    from_pretrained = AutoModelForCausalLM.from_pretrained

    def unmade(*args: Any, **kwargs: Any) -> Any:
        model, report = from_pretrained(*args, **kwargs)
        model.model.layers[0].mlp.down_proj.to("meta")
        return model, report

    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", unmade)
    with pytest.raises(SetBlockError, match=r"could not make model\.layers\.0\.mlp\.down_proj\.weight of its weights"):
        load(tmp_path, device="cpu")
