"""Random models whose vocabulary holds every byte."""

import pytest
import torch
from transformers import PreTrainedTokenizerBase

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")

from families import MODES, tiny_sbd
from setblock.model.sbd_model import SBDModel


def held_model(tokenizer: PreTrainedTokenizerBase, mode: str = "shifted", *, seed: int = 0) -> SBDModel:
    return tiny_sbd("llama", tokenizer, mode=mode, dtype=torch.float64, seed=seed, max_position_embeddings=512)


@pytest.fixture(scope="session", params=MODES)
def sbd(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    return held_model(trained_tokenizer, request.param)


@pytest.fixture(scope="session")
def shifted(trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    return held_model(trained_tokenizer)
