"""The tokenizer that is trained on a corpus."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import PreTrainedTokenizerBase

from setblock.data.tokenizer import RESERVED, train_tokenizer

TOKENIZER = train_tokenizer(["Tom has 12 apples and 7 pears.", "Ana has 40 pears."] * 5, vocab_size=270)


@given(st.text())
def test_any_text_round_trips(text: str) -> None:
    ids = TOKENIZER(text, split_special_tokens=True).input_ids
    assert TOKENIZER.decode(ids) == text


def test_digits_are_tokens_of_their_own() -> None:
    tokenizer = train_tokenizer(["47115 = 471 + 15"] * 50, vocab_size=290)
    assert tokenizer.convert_ids_to_tokens(tokenizer("47115 + 15").input_ids) == [*"47115", "Ġ+", "Ġ", *"15"]
    numbered = {token for token in tokenizer.get_vocab() if any(c.isdigit() for c in token)} - set(RESERVED)
    assert all(len(token) == 1 for token in numbered)


def test_special_tokens_come_first(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    assert trained_tokenizer.eos_token_id == 0
    assert sorted(trained_tokenizer.added_tokens_decoder) == [0, 1, 2, 3, 4]
    assert len(trained_tokenizer) <= 300


def test_too_small_a_vocabulary_is_an_error() -> None:
    with pytest.raises(ValueError, match="vocab_size must be at least 261, not 100"):
        train_tokenizer(["text"], vocab_size=100)
