from pathlib import Path

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedTokenizerBase

from setblock import SetBlockError, load
from setblock.model.probe import probe
from setblock.model.sbd_model import SBDModel

GPT_NEO = {
    "hidden_size": 32,
    "num_layers": 2,
    "num_heads": 4,
    "attention_types": [[["global", "local"], 1]],
    "max_position_embeddings": 64,
    "window_size": 8,
}


def made(model_type: str, tokenizer: PreTrainedTokenizerBase, **config: object) -> SBDModel:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(model_type, vocab_size=len(tokenizer), initializer_range=0.6, **config)
    )
    return SBDModel(model.eval(), tokenizer)


def test_a_model_with_a_causal_mask_of_its_own_is_refused_when_loaded(
    tmp_path: Path, tokenizer: PreTrainedTokenizerBase
) -> None:
    made("gpt_neo", tokenizer, **GPT_NEO).save(tmp_path)
    with pytest.raises(SetBlockError, match="gpt_neo can't be decoded in blocks: it ignores a mask"):
        load(tmp_path)


def test_a_model_that_takes_no_4d_mask_is_refused(tokenizer: PreTrainedTokenizerBase) -> None:
    with pytest.raises(SetBlockError, match="bloom can't be decoded in blocks: it takes no 4D mask"):
        probe(made("bloom", tokenizer, hidden_size=32, n_layer=2, n_head=4))
