"""Tiny random models with a tokenizer, on disk, and prompts for them.

A model is made by the same `small_copy` that the probe uses, with its thresholds lowered."""

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PretrainedConfig, PreTrainedModel, PreTrainedTokenizerBase, PreTrainedTokenizerFast

from setblock.model.probe.small_copy import VOCABULARY, run_text, small_copy, thresholds_of, with_low
from setblock.model.sbd_model import SBDModel

LOW = 24  # what thresholds are lowered to


def save_tiny(config: PretrainedConfig, folder: Path, *, lower: bool) -> None:
    """Save a tiny random model of a config, with a tokenizer."""
    with torch.device("meta"):
        whole = auto_class(config).from_config(copy.deepcopy(config), dtype=torch.float32)
    small = small_copy(whole)
    if lower and (found := thresholds_of(whole.config, small)):
        with patch("setblock.model.probe.small_copy.SMALL_THRESHOLD", LOW):
            small = with_low(small, found)
        run_text(small)
    small.generation_config.eos_token_id = small.generation_config.pad_token_id = 0
    small.save_pretrained(folder)
    tokenizer_of(VOCABULARY).save_pretrained(folder)


def auto_class(config: PretrainedConfig) -> Any:
    """What makes the model of a config."""
    from setblock.model.loading.loading import _auto_class

    return _auto_class(config)


def tokenizer_of(size: int) -> PreTrainedTokenizerBase:
    """One whose tokens are words; the first ends a text."""
    words = {f"t{number}": number for number in range(size)}
    made = Tokenizer(models.WordLevel(words, unk_token="t1"))
    made.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=made, eos_token="t0", pad_token="t0", unk_token="t1")


def prompts_of(lengths: Sequence[int]) -> list[list[int]]:
    """Random token ids that are no special ones."""
    generator = torch.Generator().manual_seed(5)
    return [torch.randint(2, VOCABULARY, (n,), generator=generator).tolist() for n in lengths]


def own_model(folder: Path, sbd: SBDModel) -> PreTrainedModel:
    """The saved model as Transformers itself loads it."""
    model: PreTrainedModel = type(sbd.model).from_pretrained(folder, dtype=torch.float32).eval()
    return model
