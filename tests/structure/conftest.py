"""Random models whose vocabulary has every byte, and tokenizers whose templates call tools."""

from functools import cache
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase

pytest.importorskip("llguidance", reason="the extra `structured` is not installed")

from families import MODES, tiny_sbd
from setblock.model.sbd_model import SBDModel
from structure.call_shapes import Shape
from structure.templates import SHAPES, shaped


def held_model(tokenizer: PreTrainedTokenizerBase, mode: str = "shifted", *, seed: int = 0) -> SBDModel:
    return tiny_sbd("llama", tokenizer, mode=mode, dtype=torch.float64, seed=seed, max_position_embeddings=512)


@pytest.fixture(scope="session", params=MODES)
def sbd(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    return held_model(trained_tokenizer, request.param)


@pytest.fixture(scope="session")
def shifted(trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    return held_model(trained_tokenizer)


@pytest.fixture(scope="session")
def shape_of(trained_tokenizer: PreTrainedTokenizerBase) -> Any:
    return cache(lambda name: Shape(shaped(trained_tokenizer, name)))


@pytest.fixture(params=SHAPES)
def shape(request: pytest.FixtureRequest, shape_of: Any) -> Shape:
    found: Shape = shape_of(request.param)
    return found
