"""What the engine's tests share: running an engine to its end."""

from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from families import tiny_sbd
from setblock.model.sbd_model import SBDModel


@pytest.fixture(scope="session")
def sbd(trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    """In float64, so that a pass of another width gives the same tokens."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="unshifted, first token causal", dtype=torch.float64)
    sbd.end_of_text_ids = (0, 40, 41)  # answers of random models end sometimes
    return sbd


@pytest.fixture(scope="session")
def texts(prompts: Sequence[list[int]]) -> list[list[int]]:
    """Prompts of which some have the same prefix."""
    long = prompts[2]
    return [*prompts, long[:17], [*long[:33], 7, 8, 9], long * 2]
