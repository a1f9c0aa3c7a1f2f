"""An adapter without its checkpoint: with the base model, it decodes as the checkpoint does."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerBase

from families import save_with_random_adapter, tiny_sbd
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate_batch
from setblock.errors import SetBlockError
from setblock.model.adapter.adapter import ADAPTER_FOLDER
from setblock.model.adapter.files import write_adapter
from setblock.model.loading.loading import NotTrainedForBlocks, load
from setblock.model.sbd_model import SBDModel

pytest.importorskip("peft")

QUERIES = r".*\.[12]\..*(q_proj|v_proj)"  # a pattern, as recipes may have


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    """In bfloat16, a folder with `base`, without an SBD config; `model`, with an adapter on mask tokens; `alone`, exported."""
    sbd = tiny_sbd("llama", tokenizer, mode="shifted", initializer_range=0.2)
    sbd.model.bfloat16()
    sbd.sbd_config = None
    sbd.model.config.setblock = None
    SBDModel(sbd.model, tokenizer).save(tmp_path / "base")
    sbd.prepare_for_training(block_sizes=[4, 6], logit_shift=True, noisy_adapter=True)
    save_with_random_adapter(sbd, tmp_path / "model", alpha=64, std=0.1, target_modules=QUERIES)
    write_adapter(tmp_path / "model" / ADAPTER_FOLDER, load(tmp_path / "model").sbd_config, tmp_path / "alone")
    return tmp_path


@pytest.mark.parametrize("adapter", ["alone", f"model/{ADAPTER_FOLDER}"])
def test_it_decodes_as_its_checkpoint_does(folder: Path, prompts: list[list[int]], adapter: str) -> None:
    settings = DecodingSettings(method="exact", max_new_tokens=24, drafts="fixed", prompt_lookup=0, block_size=6)
    whole = load(folder / "model")
    found = load(folder / "base", adapter=folder / adapter)
    assert found.sbd_config == whole.sbd_config
    for one, other in zip(*(generate_batch(each, prompts, settings=settings) for each in (whole, found)), strict=True):
        assert one.token_ids == other.token_ids
        assert one.passes == other.passes
    with pytest.warns(NotTrainedForBlocks):
        base = load(folder / "base")
    plain = generate_batch(base, prompts, settings=DecodingSettings(method="ntp", max_new_tokens=24))
    exact = generate_batch(found, prompts, settings=settings)
    assert [each.token_ids for each in plain] == [each.token_ids for each in exact]


def test_it_is_written_in_half_precision_and_names_no_machine(folder: Path) -> None:
    trained = load_file(folder / "model" / ADAPTER_FOLDER / "adapter_model.safetensors")
    written = load_file(folder / "alone" / "adapter_model.safetensors")
    assert written.keys() == trained.keys()
    assert all(torch.equal(weight, trained[name].bfloat16()) for name, weight in written.items())
    config = json.loads((folder / "alone" / "adapter_config.json").read_text())
    assert config["target_modules"] == QUERIES
    assert config["base_model_name_or_path"] is None
    with pytest.raises(SetBlockError, match="exists already"):
        write_adapter(folder / "alone", load(folder / "model").sbd_config, folder / "alone")


@pytest.mark.parametrize(
    ("sbd_config", "message"),
    [
        ('{"version": 1, "mask_token_id": 100000}', "facts.json: setblock.mask_token_id must be at most"),
        ('{"version": 1}', "either mask_token_id or noise_vocab_size"),
        ("{", "can't read .*facts.json"),
    ],
)
def test_an_sbd_config_that_does_not_fit_is_refused(folder: Path, sbd_config: str, message: str) -> None:
    (folder / "alone" / "facts.json").write_text(sbd_config)
    with pytest.raises(SetBlockError, match=message):
        load(folder / "base", adapter=folder / "alone")
