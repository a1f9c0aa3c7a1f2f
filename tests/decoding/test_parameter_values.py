"""Values of parameters: which are taken, in which types, and what is said of the others."""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from answers import answers, decoded
from families import tiny_sbd
from measuring.static_batch import static_batch
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.generate import generate, generate_batch
from setblock.errors import ParameterError

SOME = EntropyBounded(4.0)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "ar"}, "method must be one of sbd, exact, ntp, not 'ar'"),
        ({"block_size": 0}, "block_size must be at least 1, not 0"),
        ({"block_size": 2.5}, "block_size must be a whole number, not 2.5"),
        ({"prompt_lookup": -1}, "prompt_lookup must be at least 0, not -1"),
        ({"max_new_tokens": 0}, "max_new_tokens must be at least 1, not 0"),
        ({"max_new_tokens": "9"}, "max_new_tokens must be a whole number, not '9'"),
        ({"min_new_tokens": -1}, "min_new_tokens must be at least 0, not -1"),
        ({"min_new_tokens": None}, "min_new_tokens must be a whole number, not None"),
        (
            {"min_new_tokens": 6, "max_new_tokens": 5},
            "min_new_tokens must be at most max_new_tokens, 5, not 6",
        ),
        ({"temperature": -0.1}, "temperature must be a finite number of at least 0, not -0.1"),
        ({"temperature": math.nan}, "temperature must be a finite number of at least 0, not nan"),
        ({"temperature": math.inf}, "temperature must be a finite number of at least 0, not inf"),
        ({"temperature": "hot"}, "temperature must be a number, not 'hot'"),
        ({"top_k": -1}, "top_k must be at least 1, or 0 for all, not -1"),
        ({"top_p": 0.0}, "top_p must be above 0 and at most 1, not 0.0"),
        ({"top_p": 1.01}, "top_p must be above 0 and at most 1, not 1.01"),
        ({"top_p": math.nan}, "top_p must be above 0 and at most 1, not nan"),
        ({"min_p": -0.1}, "min_p must be between 0 and 1, not -0.1"),
        ({"min_p": 1.1}, "min_p must be between 0 and 1, not 1.1"),
        ({"min_p": math.nan}, "min_p must be between 0 and 1, not nan"),
        ({"repetition_penalty": 0}, "repetition_penalty must be between 0.01 and 100, not 0.0"),
        ({"repetition_penalty": 1e-40}, "repetition_penalty must be between 0.01 and 100, not 1e-40"),
        ({"repetition_penalty": math.inf}, "repetition_penalty must be between 0.01 and 100, not inf"),
        ({"logit_bias": {5: math.nan}}, "logit_bias of token 5 must be between -1e\\+09 and 1e\\+09, not nan"),
        ({"logit_bias": {5: -math.inf}}, "logit_bias of token 5 must be between -1e\\+09 and 1e\\+09, not -inf"),
        ({"logit_bias": {5: 1e39}}, "logit_bias of token 5 must be between -1e\\+09 and 1e\\+09, not 1e\\+39"),
        ({"logit_bias": {"5": 1}}, "token ids of logit_bias must be a whole number, not '5'"),
        ({"banned_tokens": ["5"]}, "token ids of banned_tokens must be a whole number, not '5'"),
        ({"stop_token_ids": [5.5]}, "token ids of stop_token_ids must be a whole number, not 5.5"),
        ({"stop": ""}, "stop must be a text that is not empty, not ''"),
        ({"stop": ["a", ""]}, "stop must be a text that is not empty, not ''"),
        ({"stop": [7]}, "stop must be a text that is not empty, not 7"),
        ({"stop": list("abcdefghijklmnopq")}, "stop strings must be at most 16, not 17"),
        ({"seed": 2**63}, "seed must be a number of 64 bits, not 9223372036854775808"),
        ({"seed": -(2**63) - 1}, "seed must be a number of 64 bits"),
        ({"n": 0}, "n must be between 1 and 128, not 0"),
        ({"n": 129}, "n must be between 1 and 128, not 129"),
        ({"logprobs": -1}, "logprobs must be between 0 and 20, not -1"),
        ({"logprobs": 21}, "logprobs must be between 0 and 20, not 21"),
    ],
)
def test_what_is_out_of_range_is_reported(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ParameterError, match=message) as error:
        DecodingSettings(**fields)
    assert "\n" not in str(error.value)


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1e39, "banned_tokens": range(100)},
        {"temperature": 1e-300, "top_p": 1e-300},
        {"temperature": 1.0, "top_p": 1e-300, "min_p": 1e-300, "top_k": 10**9},
        {"temperature": 1.0, "min_p": 1.0, "seed": -(2**63)},
        {"logit_bias": {5: 1e9, 6: -1e9}, "repetition_penalty": 0.01, "temperature": 1e-9},
        {"repetition_penalty": 100.0, "temperature": 1.0},
        {"logit_bias": dict.fromkeys(range(300), -1e9)},
    ],
)
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_the_ends_of_the_ranges_work(
    method: Any, fields: dict[str, Any], trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer)
    sbd.end_of_text_ids = ()
    settings = DecodingSettings(method=method, block_size=4, max_new_tokens=6, sampler=SOME, **fields)
    generation = answers(sbd, prompts[:1], [settings])[0]
    assert generation.finish_reason == "length"
    assert generation.num_tokens == 6
    assert not set(settings.banned_tokens) & set(generation.token_ids)


@pytest.mark.parametrize(
    ("name", "token_ids"), [("logit_bias", {300: 1.0}), ("banned_tokens", [-1]), ("stop_token_ids", [5, 300])]
)
def test_token_ids_outside_the_vocabulary(
    name: str, token_ids: Any, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer)
    with pytest.raises(ParameterError, match=f"token ids of {name} must be between 0 and 299, not"):
        static_batch(sbd, prompts[:1], [DecodingSettings(**{name: token_ids})])


def test_numbers_and_sequences_of_other_types(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """NumPy's numbers and arrays, sets and ranges: what a caller may hold."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    plain = DecodingSettings(
        method="sbd",
        block_size=4,
        max_new_tokens=7,
        min_new_tokens=2,
        temperature=0.75,
        top_k=20,
        top_p=0.75,
        min_p=0.125,
        repetition_penalty=1.25,
        logit_bias={40: 1.5},
        banned_tokens=(5, 6, 7),
        stop=("x", "y"),
        stop_token_ids=(9,),
        seed=3,
        logprobs=2,
        sampler=SOME,
    )
    odd = DecodingSettings(
        method="sbd",
        block_size=np.int64(4),
        max_new_tokens=np.int32(7),
        min_new_tokens=np.uint8(2),
        temperature=np.float64(0.75),
        top_k=np.int64(20),
        top_p=np.float32(0.75),
        min_p=np.float64(0.125),
        repetition_penalty=np.float64(1.25),
        logit_bias={np.int64(40): np.float64(1.5)},
        banned_tokens=np.arange(5, 8),
        stop=["x", "y"],
        stop_token_ids={9},
        seed=np.int64(3),
        logprobs=np.int64(2),
        sampler=SOME,
    )
    assert odd == plain
    assert DecodingSettings(method="sbd", stop="xy") == DecodingSettings(method="sbd", stop=["xy"])
    ours, theirs = decoded(sbd, prompts[:2], [plain, odd]), decoded(sbd, prompts[:2], [odd, plain])
    assert ours.generation(0).token_ids == theirs.generation(0).token_ids
    assert ours.generation(0).logprobs == theirs.generation(0).logprobs


def test_n_belongs_to_batches(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer)
    with pytest.raises(ParameterError, match="n must be 1 for one answer, not 2: generate_batch gives several"):
        generate(sbd, "Tom", settings=DecodingSettings(method="sbd", n=2))


@pytest.mark.in_turn
@pytest.mark.parametrize("seed", [5, 2**63 - 2, np.int64(2**63 - 1), -(2**63)])
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_each_of_n_answers_is_a_seed_of_its_own(
    method: Any, seed: Any, trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Seeds are counted round at the end of 64 bits."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    settings = DecodingSettings(
        method=method, seed=seed, n=3, temperature=1.5, max_new_tokens=5, block_size=4, sampler=SOME
    )
    together = generate_batch(sbd, ["Tom has", "Ana"], settings=[settings, replace(settings, n=1)], raw=True)
    assert len(together) == 4
    for sample, generation in enumerate(together[:3]):
        alone = (int(seed) + sample + 2**63) % 2**64 - 2**63
        single = generate(sbd, "Tom has", settings=replace(settings, seed=alone, n=1), raw=True)
        assert single.token_ids == generation.token_ids
    assert together[3].token_ids == generate(sbd, "Ana", settings=replace(settings, n=1), raw=True).token_ids
    assert len({tuple(each.token_ids) for each in together[:3]}) > 1
