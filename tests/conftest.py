"""What all tests share: a small tokenizer and prompts to give to random models."""

import itertools

import pytest
import torch
from hypothesis import settings
from transformers import PreTrainedTokenizerBase

from setblock.data.documents import Document, encode_problems
from setblock.data.tokenizer import train_tokenizer
from setblock.data.word_problems import WordProblem, word_problems

settings.register_profile("setblock", deadline=None, max_examples=40, derandomize=True)
settings.load_profile("setblock")
torch.set_num_threads(1)


@pytest.fixture(scope="session")
def problems() -> list[WordProblem]:
    return list(itertools.islice(word_problems("train"), 60))


@pytest.fixture(scope="session")
def trained_tokenizer(problems: list[WordProblem]) -> PreTrainedTokenizerBase:
    """Shared: tests that change their tokenizer take `tokenizer`."""
    return train_tokenizer((p.prompt + p.completion for p in problems), vocab_size=300)


@pytest.fixture
def tokenizer(problems: list[WordProblem]) -> PreTrainedTokenizerBase:
    return train_tokenizer((p.prompt + p.completion for p in problems), vocab_size=300)


@pytest.fixture(scope="session")
def prompts(trained_tokenizer: PreTrainedTokenizerBase, problems: list[WordProblem]) -> list[list[int]]:
    """Token ids of three prompts of different lengths."""
    return [trained_tokenizer(p.prompt).input_ids[:n] for p, n in zip(problems, (9, 23, 40), strict=False)]


@pytest.fixture(scope="session")
def documents(trained_tokenizer: PreTrainedTokenizerBase, problems: list[WordProblem]) -> list[Document]:
    """Six short documents."""
    whole = encode_problems(trained_tokenizer, problems[:6])
    return [
        Document(d.token_ids[-n:], d.carries_loss[-n:]) for d, n in zip(whole, (19, 33, 8, 26, 14, 21), strict=True)
    ]
