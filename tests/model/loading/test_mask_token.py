"""The mask token: the tokenizer's own, a reserved one, or a new one."""

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

from families import tiny_model
from setblock.model.loading.mask_token import MASK_TOKEN, add_mask_token, reserved_id
from setblock.model.sbd_model import SBDModel

RESERVED = [f"<|reserved_special_token_{i}|>" for i in range(2)]


def word_tokenizer(*special: str, **named: str) -> PreTrainedTokenizerFast:
    """Words a, b, c and an end-of-text, and what a test adds."""
    vocabulary = {word: i for i, word in enumerate(["a", "b", "c", "</s>", "[UNK]"])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="[UNK]", **named)
    tokenizer.add_tokens(list(special), special_tokens=True)
    return tokenizer


def test_the_tokenizers_own_is_taken_as_it_is() -> None:
    tokenizer = word_tokenizer(*RESERVED, mask_token="[MASK]")
    model = tiny_model("llama", vocab_size=len(tokenizer))
    before = model.get_input_embeddings().weight.clone()
    assert add_mask_token(model, tokenizer) == tokenizer.mask_token_id == tokenizer.convert_tokens_to_ids("[MASK]")
    assert torch.equal(model.get_input_embeddings().weight, before)


def test_a_reserved_one_is_taken_before_one_is_appended() -> None:
    tokenizer = word_tokenizer("<|image|>", *RESERVED)
    model = tiny_model("llama", vocab_size=len(tokenizer))
    assert add_mask_token(model, tokenizer) == tokenizer.convert_tokens_to_ids(RESERVED[0])
    assert len(model.get_input_embeddings().weight) == len(tokenizer) == 8


def test_a_reserved_one_that_has_a_role_is_left_alone() -> None:
    first, second = RESERVED
    tokenizer = word_tokenizer(first, second)
    ids = tokenizer.convert_tokens_to_ids(RESERVED)
    assert reserved_id(tokenizer) == ids[0]
    tokenizer.pad_token = first
    assert reserved_id(tokenizer) == ids[1]
    tokenizer.chat_template = "{{ messages[0]['content'] }}" + second
    assert reserved_id(tokenizer) is None


def test_a_reserved_one_that_ends_the_models_answers_is_left_alone() -> None:
    tokenizer = word_tokenizer(*RESERVED)
    ids = tokenizer.convert_tokens_to_ids(RESERVED)
    model = tiny_model("llama", vocab_size=len(tokenizer))
    model.generation_config.eos_token_id = [3, ids[0]]
    assert add_mask_token(model, tokenizer) == ids[1]


@pytest.mark.parametrize(
    "name",
    [
        "<|reserved_special_token_7|>",
        "<unused3>",
        "<unused_3>",
        "[unused12]",
        "<|extra_0|>",
        "[control_8]",
        ">>UNUSED_9<<",
    ],
)
def test_names_of_reserved_tokens(name: str) -> None:
    tokenizer = word_tokenizer("<|image|>", name)
    assert reserved_id(tokenizer) == tokenizer.convert_tokens_to_ids(name)


@pytest.mark.parametrize("family", ["llama", "gpt2", "gemma3_text"])
@pytest.mark.parametrize("tied", [True, False])
def test_appended(family: str, tied: bool) -> None:
    """One row more in both matrices, the old rows as they were, the new one their mean; tied stays tied."""
    tokenizer = word_tokenizer()
    model = tiny_model(family, vocab_size=5, tie_word_embeddings=tied)
    before = [layer.weight.clone() for layer in (model.get_input_embeddings(), model.get_output_embeddings())]
    assert add_mask_token(model, tokenizer) == 5
    assert tokenizer.mask_token == MASK_TOKEN
    assert model.config.vocab_size == 6
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    assert (layers[0].weight is layers[1].weight) == tied
    for layer, old in zip(layers, before, strict=True):
        assert torch.equal(layer.weight[:5], old)
        torch.testing.assert_close(layer.weight[5], old.mean(dim=0))
    assert model(input_ids=torch.tensor([[5, 0]])).logits.shape == (1, 2, 6)


def test_a_padded_vocabulary_has_room_already() -> None:
    """More rows than tokens: nothing is resized."""
    tokenizer = word_tokenizer()
    model = tiny_model("llama", vocab_size=16)
    assert add_mask_token(model, tokenizer) == 5
    assert len(model.get_input_embeddings().weight) == model.config.vocab_size == 16
    others = torch.arange(16) != 5
    weight = model.get_input_embeddings().weight
    torch.testing.assert_close(weight[5], weight[others].mean(dim=0))


def test_a_mask_token_beyond_the_embeddings_gets_a_row() -> None:
    """A tokenizer may name a mask token that its model was never resized for."""
    tokenizer = word_tokenizer(mask_token="[MASK]")
    model = tiny_model("llama", vocab_size=5)
    assert add_mask_token(model, tokenizer) == 5
    assert len(model.get_input_embeddings().weight) == 6
    assert model(input_ids=torch.tensor([[5]])).logits.isfinite().all()


def test_a_bias_of_the_head_starts_from_its_mean_too() -> None:
    tokenizer = word_tokenizer()
    model = tiny_model("phi", vocab_size=8, **_PHI)
    torch.nn.init.normal_(model.lm_head.bias)
    assert add_mask_token(model, tokenizer) == 5
    others = torch.arange(8) != 5
    torch.testing.assert_close(model.lm_head.bias[5], model.lm_head.bias[others].mean())


_PHI = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 4}


def test_preparing_twice_changes_the_sbd_config_and_not_the_token(tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = SBDModel(tiny_model("llama", vocab_size=len(tokenizer)), tokenizer)
    first = sbd.prepare_for_training(block_sizes=[4, 2, 4], logit_shift=False)
    weight = sbd.model.get_input_embeddings().weight.clone()
    second = sbd.prepare_for_training(block_sizes=range(2, 9), logit_shift=True)
    assert (first.block_sizes, first.logit_shift, first.first_token_from_causal) == ((2, 4), False, False)
    assert (second.block_sizes, second.logit_shift, second.first_token_from_causal) == (tuple(range(2, 9)), True, True)
    assert first.mask_token_id == second.mask_token_id == 1
    assert torch.equal(sbd.model.get_input_embeddings().weight, weight)
