"""A checkpoint that decodes in blocks by the code it carries."""

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, PreTrainedModel, PreTrainedTokenizerBase

from families import tiny_sbd

PAD = 2
NEW = 14


@pytest.fixture(scope="module", autouse=True)
def _own_modules_cache(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Transformers copies a checkpoint's code before it runs it; here not into the user's cache."""
    with pytest.MonkeyPatch.context() as patch:
        cache = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", cache)
        patch.setattr(sys, "path", [*sys.path])
        yield


@pytest.fixture(scope="module")
def folder(trained_tokenizer: PreTrainedTokenizerBase, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("checkpoint")
    tiny_sbd("llama", trained_tokenizer, num_hidden_layers=3).save(path)
    return path


@pytest.fixture
def model(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder)


@pytest.fixture
def in_blocks(model: PreTrainedModel, folder: Path) -> Any:
    """`model.generate` by the code of the checkpoint."""
    own = {"custom_generate": str(folder), "trust_remote_code": True}
    return partial(model.generate, max_new_tokens=NEW, pad_token_id=PAD, **own)


def padded(prompts: Sequence[Sequence[int]]) -> dict[str, torch.Tensor]:
    """A left-padded batch, as a tokenizer gives it."""
    length = max(map(len, prompts))
    ids = [[*[PAD] * (length - len(prompt)), *prompt] for prompt in prompts]
    mask = [[*[0] * (length - len(prompt)), *[1] * len(prompt)] for prompt in prompts]
    return {"input_ids": torch.tensor(ids), "attention_mask": torch.tensor(mask)}
