"""What the tests of training share: small models to start from."""

from pathlib import Path

import pytest
import torch

from conftest import TEXTS
from families import tiny_model
from setblock.data.tokenizer import train_tokenizer
from setblock.model.probe.probe import plan_attention


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    tokenizer = train_tokenizer(TEXTS, vocab_size=300)
    for tied in (False, True):
        for dtype in (torch.float32, torch.bfloat16):
            model = tiny_model(
                "llama",
                vocab_size=len(tokenizer),
                dtype=dtype,
                tie_word_embeddings=tied,
                initializer_range=0.2,
                num_hidden_layers=2,
                max_position_embeddings=512,
            )
            plan_attention(model, alternatives=["eager"])  # as loading does; here, and not in each process again
            path = folder / f"{'tied' if tied else 'untied'}-{str(dtype).removeprefix('torch.')}"
            model.save_pretrained(path)
            tokenizer.save_pretrained(path)
    return folder
