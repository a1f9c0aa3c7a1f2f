"""A saved checkpoint: whole or absent, the same when loaded, and an ordinary causal LM to stock Transformers."""

import json
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerBase

from answers import decoded
from families import FAMILIES, tiny_model, tiny_sbd
from measuring.plain import transformers_answer
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate
from setblock.errors import SetBlockError
from setblock.model.loading.loading import NotTrainedForBlocks, load
from setblock.model.sbd_model import SBDModel


@pytest.mark.parametrize("family", FAMILIES)
def test_round_trip(family: str, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, prompts: list[list[int]]) -> None:
    """Logits, SBD config, tokenizer and decoded tokens are what they were; also for stock Transformers, as an NTP model."""
    sbd = tiny_sbd(family, tokenizer, mode="shifted")
    sbd.save(tmp_path)
    again = load(tmp_path, device="cpu")
    ids = torch.tensor(prompts[:1])
    with torch.inference_mode():
        expected = sbd.model(input_ids=ids).logits
        assert torch.equal(again.model(input_ids=ids).logits, expected)
    assert again.sbd_config == sbd.sbd_config
    assert again.end_of_text_ids == sbd.end_of_text_ids
    assert again.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert again.tokenizer.chat_template == tokenizer.chat_template

    settings = DecodingSettings(method="sbd", block_size=4, max_new_tokens=10)
    answers = [generate(model, "How many?", settings=settings) for model in (sbd, again)]
    assert answers[0].token_ids == answers[1].token_ids

    stock = AutoModelForCausalLM.from_pretrained(tmp_path, attn_implementation=sbd.model.config._attn_implementation)
    batch = decoded(again, prompts[:1], [DecodingSettings(method="ntp", max_new_tokens=12)])
    assert transformers_answer(stock, prompts[0], max_new_tokens=12) == batch.generation(0).token_ids
    assert AutoTokenizer.from_pretrained(tmp_path).get_vocab() == tokenizer.get_vocab()


@pytest.mark.parametrize("tied", [True, False])
def test_an_appended_mask_token_survives(tied: bool, tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tokenizer.chat_template = "".join(token.content for token in tokenizer.added_tokens_decoder.values())
    sbd = tiny_sbd("llama", tokenizer, tie_word_embeddings=tied)
    assert sbd.sbd_config is not None
    assert sbd.sbd_config.mask_token_id == len(tokenizer) - 1
    sbd.save(tmp_path)
    again = load(tmp_path, device="cpu")
    assert again.tokenizer.mask_token_id == sbd.sbd_config.mask_token_id
    ids = torch.tensor([[5, sbd.sbd_config.mask_token_id]])
    with torch.inference_mode():
        assert torch.equal(again.model(input_ids=ids).logits, sbd.model(input_ids=ids).logits)


def test_stored_in_a_smaller_type(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """Half the size on disk; the config still says float32, so that it runs in float32."""
    sbd = tiny_sbd("llama", tokenizer)
    sbd.save(tmp_path / "half", dtype=torch.bfloat16)
    sbd.save(tmp_path / "whole")
    sizes = [(tmp_path / name / "model.safetensors").stat().st_size for name in ("half", "whole")]
    assert sizes[0] < 0.6 * sizes[1]
    again = load(tmp_path / "half", device="cpu")
    assert again.model.dtype == torch.float32
    for ours, theirs in zip(again.model.parameters(), sbd.model.parameters(), strict=True):
        assert torch.equal(ours, theirs.bfloat16().float())
    assert sbd.model.dtype == torch.float32


@pytest.mark.parametrize("after", range(5))
@pytest.mark.parametrize("over_an_older_one", [False, True])
def test_an_interrupted_save_leaves_no_checkpoint(
    over_an_older_one: bool,
    after: int,
    tokenizer: PreTrainedTokenizerBase,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Stopped after any number of files: nothing that looks whole and is not, and the next save mends it."""
    if over_an_older_one:
        tiny_sbd("llama", tokenizer, seed=1).save(tmp_path)
    sbd, moved = tiny_sbd("llama", tokenizer), []
    replace = os.replace

    def interrupted(source: Any, target: Any) -> None:
        if len(moved) == after:
            raise KeyboardInterrupt
        moved.append(target)
        replace(source, target)

    with monkeypatch.context() as patch:
        patch.setattr("setblock.model.sbd_model.os.replace", interrupted)
        with pytest.raises(KeyboardInterrupt):
            sbd.save(tmp_path)
    assert not (tmp_path / "config.json").exists()
    assert not list(tmp_path.glob(".saving-*"))
    with pytest.raises(SetBlockError, match="the folder has no config"):
        load(tmp_path)

    sbd.save(tmp_path)
    with torch.inference_mode():
        ids = torch.tensor([[5, 6, 7]])
        assert torch.equal(load(tmp_path, device="cpu").model(input_ids=ids).logits, sbd.model(input_ids=ids).logits)


@pytest.mark.parametrize("first_in_shards", [True, False])
def test_weights_of_an_older_checkpoint_do_not_stay(
    first_in_shards: bool, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Transformers would take a stale `model.safetensors` before the shards of a newer save, or the other way round."""
    older, newer = (tiny_sbd("llama", tokenizer, seed=seed) for seed in (1, 2))
    in_shards = partial(older.model.save_pretrained, max_shard_size="20KB")
    monkeypatch.setattr((older if first_in_shards else newer).model, "save_pretrained", in_shards)
    older.save(tmp_path)
    before = {path.name for path in tmp_path.glob("*.safetensors*")}
    newer.save(tmp_path)
    after = {path.name for path in tmp_path.glob("*.safetensors*")}
    assert len(before) == 1 or len(after) == 1
    assert not before & after
    ids = torch.tensor([[5, 6, 7]])
    with torch.inference_mode():
        assert torch.equal(load(tmp_path, device="cpu").model(input_ids=ids).logits, newer.model(input_ids=ids).logits)


def test_files_of_others_stay(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """A save deletes the weights of the checkpoint that it replaces: those that its index names, in this folder alone."""
    folder, others = tmp_path / "checkpoint", ("adapter_model.safetensors", "consolidated.safetensors", "notes.txt")
    folder.mkdir()
    for name in (*others, "model-00001-of-00002.safetensors", "../model-00002-of-00002.safetensors"):
        (folder / name).write_bytes(b"other")
    named = ("model-00001-of-00002.safetensors", "../model-00002-of-00002.safetensors", "notes.txt")
    index = {"weight_map": {str(place): name for place, name in enumerate(named)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    tiny_sbd("llama", tokenizer).save(folder)
    assert {path.name for path in folder.glob("*.safetensors*")} == {*others[:2], "model.safetensors"}
    assert all((folder / name).read_bytes() == b"other" for name in others)
    assert (tmp_path / "model-00002-of-00002.safetensors").exists()


def test_a_model_is_not_saved_into_the_folder_of_an_adapter(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """Transformers would load the model with the adapter that lies next to it."""
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text("{}")
    with pytest.raises(
        SetBlockError, match="holds an adapter, with which the model would be loaded: save it elsewhere"
    ):
        tiny_sbd("llama", tokenizer).save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"adapter_config.json", "adapter_model.safetensors"}


def test_the_config_has_the_sbd_config_and_nothing_of_this_machine(
    tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> None:
    sbd = tiny_sbd("llama", tokenizer)
    sbd.save(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["setblock"] == {
        "mask_token_id": 1,
        "block_sizes": list(range(2, 17)),
        "logit_shift": False,
        "first_token_from_causal": False,
        "version": 1,
    }
    assert config["architectures"] == ["LlamaForCausalLM"]
    for path in tmp_path.glob("*.json"):
        assert str(tmp_path) not in path.read_text()


def test_a_model_that_was_never_trained_for_blocks(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    """It loads with a warning, decodes one token a pass, and can be prepared for training."""
    model = tiny_model("llama", vocab_size=len(tokenizer))
    SBDModel(model, tokenizer).save(tmp_path)
    with pytest.warns(NotTrainedForBlocks, match="was never trained for blocks: method 'exact' copies its drafts"):
        sbd = load(tmp_path, device="cpu")
    assert sbd.sbd_config is None
    assert generate(sbd, "How many?", settings=DecodingSettings(method="ntp", max_new_tokens=3)).num_tokens <= 3
    sbd.prepare_for_training(block_sizes=[4], logit_shift=False)
    assert (
        generate(sbd, "How many?", settings=DecodingSettings(method="sbd", block_size=4, max_new_tokens=3)).num_tokens
        <= 3
    )
