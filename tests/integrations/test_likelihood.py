"""Log-likelihoods in batches against one plain pass for each token."""

import copy
import math
import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from families import CONTEXT, FAMILIES, tiny_sbd
from setblock.errors import SetBlockError
from setblock.integrations.lm_eval.likelihood import likelihoods


def naive(model, context, continuation):
    """A pass for every token of the continuation, over what comes before it and nothing else."""
    total, is_greedy, tokens = 0.0, True, list(context)
    for token in continuation:
        with torch.no_grad():
            logits = model.model(input_ids=torch.tensor([tokens])).logits[0, -1].double()
        total += float(logits.log_softmax(-1)[token])
        is_greedy &= int(logits.argmax()) == token
        tokens.append(token)
    return total, is_greedy


def requests(seed, *, vocab_size, count=9):
    rng = random.Random(seed)

    def tokens(longest):
        return [rng.randrange(2, vocab_size) for _ in range(rng.randint(1, longest))]

    contexts = [tokens(20) for _ in range(3)]  # each asked about several times, as choices are
    return [(rng.choice(contexts), tokens(rng.choice((1, 1, 7)))) for _ in range(count)]


@pytest.mark.parametrize("family", ["llama", "gemma2", "gemma3_text", "gpt2", "mixtral"])
def test_a_batch_is_each_alone_in_plain_passes(family, trained_tokenizer):
    assert family in FAMILIES
    model = tiny_sbd(family, copy.deepcopy(trained_tokenizer))
    asked = requests(family, vocab_size=len(trained_tokenizer))
    found = likelihoods(model, asked, batch_size=4)
    for (context, continuation), each in zip(asked, found, strict=True):
        logprob, is_greedy = naive(model, context, continuation)
        assert each.logprob == pytest.approx(logprob, abs=1e-3)
        assert each.is_greedy == is_greedy


def test_what_the_model_would_write_is_greedy(trained_tokenizer):
    model = tiny_sbd("llama", copy.deepcopy(trained_tokenizer))
    context = [5, 6, 7]
    with torch.no_grad():
        first = int(model.model(input_ids=torch.tensor([context])).logits[0, -1].argmax())
        second = int(model.model(input_ids=torch.tensor([[*context, first]])).logits[0, -1].argmax())
    found = likelihoods(model, [(context, [first, second]), (context, [first, (second + 1) % 300])], batch_size=2)
    assert [each.is_greedy for each in found] == [True, False]


@given(seed=st.integers(0, 10**6), batch_size=st.integers(1, 5))
def test_neither_order_nor_batch_size_matters(shared_model, seed, batch_size):
    asked = requests(seed, vocab_size=300)
    alone = [likelihoods(shared_model, [each])[0].logprob for each in asked]
    together = likelihoods(shared_model, asked, batch_size=batch_size)
    assert [each.logprob for each in together] == pytest.approx(alone, abs=1e-3)
    assert all(each.logprob <= 0 for each in together)


@pytest.fixture(scope="module")
def shared_model(trained_tokenizer):
    return tiny_sbd("llama", copy.deepcopy(trained_tokenizer))


def test_one_pass_for_each_batch_of_different_inputs(shared_model, monkeypatch):
    passes = []
    forward = shared_model.model.forward
    monkeypatch.setattr(shared_model.model, "forward", lambda **kwargs: passes.append(1) or forward(**kwargs))
    choices = [([4, 5, 6], [token]) for token in (7, 8, 9, 10)]  # one pass answers all four: their inputs are the same
    done = []
    likelihoods(shared_model, [*choices, ([4, 5], [7, 7]), ([9], [8])], batch_size=2, on_progress=done.append)
    assert len(passes) == 2
    assert sum(done) == 6
    likelihoods(
        shared_model, [*choices, ([4, 5], [6, 7])], batch_size=1
    )  # what it is asked about 4, 5, 6 fits in one row
    assert len(passes) == 3


def test_the_probabilities_of_all_tokens_add_up_to_one(shared_model):
    found = likelihoods(shared_model, [([4, 5, 6], [token]) for token in range(shared_model.model.config.vocab_size)])
    assert math.fsum(math.exp(each.logprob) for each in found) == pytest.approx(1, abs=1e-4)
    assert sum(each.is_greedy for each in found) == 1


def test_what_is_too_long_loses_its_beginning(shared_model):
    long = list(range(2, 2 + CONTEXT + 30))
    (found,) = likelihoods(shared_model, [(long, [3, 4])])
    (cut,) = likelihoods(shared_model, [(long[-(CONTEXT - 1) :], [3, 4])])
    assert found == cut
    with pytest.raises(SetBlockError, match=f"{CONTEXT + 30} tokens; at most {CONTEXT} fit"):
        likelihoods(shared_model, [([2], long)])
    with pytest.raises(SetBlockError, match="at most 4 fit"):
        likelihoods(shared_model, [([2], [3] * 5)], max_length=4)
