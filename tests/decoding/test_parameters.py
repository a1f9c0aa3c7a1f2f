"""What a request may ask of its tokens: each parameter is what Transformers means by it."""

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from transformers import (
    MinPLogitsWarper,
    PreTrainedTokenizerBase,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from answers import answers, decoded
from families import MODES, tiny_model, tiny_sbd
from measuring.plain import transformers_answer
from measuring.static_batch import static_batch
from naive import columns_of
from setblock.decoding.samplers import EntropyBounded, Sampler
from setblock.decoding.settings.table import DecodingSettings, RequestParams
from setblock.decoding.state.joining import open_state
from setblock.decoding.state.state import Columns
from setblock.decoding.step.choice import cut, draws_of
from setblock.decoding.step.logits import Logits, logit_rules, read_best
from setblock.errors import ParameterError
from setblock.model.sbd_model import SBDModel

LENGTH = 14
ONE_AT_A_TIME, SOME, WHOLE_BLOCK = EntropyBounded(0.0), EntropyBounded(4.0), EntropyBounded(math.inf)

# Of the greedy answer of a prompt: settings, and what Transformers' `generate` calls the same
Case = Callable[[list[int]], tuple[dict[str, Any], dict[str, Any]]]


def biased(biases: dict[int, float]) -> dict[str, Any]:
    return {"sequence_bias": {(token_id,): bias for token_id, bias in biases.items()}}


CASES: dict[str, Case] = {
    "penalty": lambda plain: ({"repetition_penalty": 1.8}, {"repetition_penalty": 1.8}),
    "reward": lambda plain: ({"repetition_penalty": 0.4}, {"repetition_penalty": 0.4}),
    "bias": lambda plain: (
        {"logit_bias": {plain[0]: -9.0, plain[1]: -4.5, 40: 3.0}},
        biased({plain[0]: -9.0, plain[1]: -4.5, 40: 3.0}),
    ),
    "ban": lambda plain: ({"banned_tokens": plain[1:4]}, {"suppress_tokens": plain[1:4]}),
    "stop id": lambda plain: ({"stop_token_ids": [7, plain[4]]}, {"eos_token_id": [0, 7, plain[4]]}),
    "late end": lambda plain: (
        {"min_new_tokens": 6, "stop_token_ids": [plain[2], plain[8]]},
        {"min_new_tokens": 6, "eos_token_id": [0, plain[2], plain[8]]},
    ),
    "banned stop id": lambda plain: (
        {"stop_token_ids": [plain[3]], "banned_tokens": [plain[3]]},
        {"eos_token_id": [0, plain[3]], "suppress_tokens": [plain[3]]},
    ),
    "bias and penalty": lambda plain: (
        {"logit_bias": {plain[0]: 2.0, plain[2]: -3.0, 40: 2.5}, "repetition_penalty": 1.4},
        biased({plain[0]: 2.0, plain[2]: -3.0, 40: 2.5}) | {"repetition_penalty": 1.4},
    ),
    "everything": lambda plain: (
        {
            "repetition_penalty": 1.3,
            "logit_bias": {plain[2]: 4.0, 50: 1.0},
            "banned_tokens": plain[:2],
            "min_new_tokens": 4,
            "stop_token_ids": [plain[2], plain[5]],
        },
        biased({plain[2]: 4.0, 50: 1.0})
        | {
            "repetition_penalty": 1.3,
            "suppress_tokens": plain[:2],
            "min_new_tokens": 4,
            "eos_token_id": [0, plain[2], plain[5]],
        },
    ),
}


@pytest.mark.parametrize("family", ["llama", "gpt2"])
def test_ntp_with_parameters_is_the_models_own_generate(
    family: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """All of it in one batch, where each row has rules of its own."""
    sbd = SBDModel(tiny_model(family, vocab_size=len(trained_tokenizer)), trained_tokenizer)
    plain = [transformers_answer(sbd.model, prompt, max_new_tokens=LENGTH) for prompt in prompts]
    assert [len(each) for each in plain] == [LENGTH] * 3
    rows = [(name, prompt, greedy) for name in CASES for prompt, greedy in zip(prompts, plain, strict=True)]
    settings = [
        DecodingSettings(method="ntp", max_new_tokens=LENGTH, **CASES[name](greedy)[0]) for name, _, greedy in rows
    ]
    ours = answers(sbd, [prompt for _, prompt, _ in rows], settings)
    changed = dict.fromkeys(CASES, 0)
    for (name, prompt, greedy), generation in zip(rows, ours, strict=True):
        arguments = CASES[name](greedy)[1]
        theirs = transformers_answer(sbd.model, prompt, max_new_tokens=LENGTH, **arguments)
        assert generation.token_ids == theirs, name
        ends = arguments.get("eos_token_id", [0])
        assert (generation.finish_reason == "stop") == (generation.token_ids[-1] in ends)
        changed[name] += generation.token_ids != greedy
    assert all(changed.values())


@pytest.mark.parametrize("method", ["sbd", "exact"])
def test_blocks_of_one_token_are_ntp_with_every_parameter(
    method: Any, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    sbd.end_of_text_ids = (0,)
    plain = answers(sbd, prompts[:1], [DecodingSettings(method="ntp", max_new_tokens=LENGTH)])[0].token_ids
    settings = [
        DecodingSettings(method="sbd", max_new_tokens=LENGTH, block_size=1, temperature=t, seed=3, **case(plain)[0])
        for case in CASES.values()
        for t in (0.0, 0.9)
    ]
    rows = [prompts[0]] * len(settings)
    blocks = answers(sbd, rows, [replace(each, method=method) for each in settings])
    ntp = answers(sbd, rows, [replace(each, method="ntp") for each in settings])
    assert [each.token_ids for each in blocks] == [each.token_ids for each in ntp]


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_that_wants_to_end_ends_as_soon_as_it_may(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Every token likes best to be an end: the model's own, or the request's."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    sbd.end_of_text_ids = (0,)
    rows = [
        DecodingSettings(
            method=method,
            sampler=sampler,
            block_size=size,
            max_new_tokens=20,
            min_new_tokens=least,
            logit_bias={end: 1000.0},
            stop_token_ids=(9,),
            temperature=temperature,
        )
        for method, sampler in (("ntp", None), ("sbd", ONE_AT_A_TIME), ("sbd", WHOLE_BLOCK), ("exact", WHOLE_BLOCK))
        for least, size in ((0, 4), (1, 4), (7, 4), (8, 4), (20, 6))
        for end, temperature in ((0, 0.0), (9, 1.0))
    ]
    for settings, generation in zip(rows, answers(sbd, [prompts[0]] * len(rows), rows), strict=True):
        end = next(iter(settings.logit_bias))
        if settings.min_new_tokens == 20:
            assert generation.finish_reason == "length"
            assert generation.num_tokens == 20
            assert not {0, 9} & set(generation.token_ids)
            continue
        assert generation.finish_reason == "stop"
        assert generation.num_tokens == settings.min_new_tokens + 1
        assert generation.token_ids[-1] == end
        assert not {0, 9} & set(generation.token_ids[:-1])
        assert generation.text == trained_tokenizer.decode(generation.token_ids[:-1], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("sampler", "expected"),
    [
        (ONE_AT_A_TIME, [10, 11, 12, 13, 13, 13, 13, 13]),
        # What one pass reveals knows of each other nothing; what came before, all
        (WHOLE_BLOCK, [10, 10, 10, 10, 11, 11, 11, 11]),
    ],
)
@pytest.mark.parametrize("mode", MODES)
def test_tokens_of_a_block_are_penalised_from_the_pass_after_they_are_revealed(
    mode: str, sampler: Sampler, expected: list[int], trained_tokenizer: PreTrainedTokenizerBase
) -> None:
    """Of four tokens, wherever they are revealed; the one the model likes best is in the prompt."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    with torch.no_grad():
        sbd.model.get_output_embeddings().weight.zero_()
    bias = {13: 9.0, 10: 8.0, 11: 7.0, 12: 6.0}
    settings = DecodingSettings(
        method="sbd", block_size=4, max_new_tokens=8, sampler=sampler, logit_bias=bias, repetition_penalty=2.0
    )
    ours = answers(sbd, [[20, 13, 21]] * 2, [settings, replace(settings, repetition_penalty=1.0)])
    if mode == "unshifted" or sampler is ONE_AT_A_TIME:
        assert ours[0].token_ids == expected
    else:  # the prefill reveals the first
        assert ours[0].token_ids == [10, 11, 11, 11, 12, 12, 12, 12]
    assert ours[1].token_ids == [13] * 8


@pytest.mark.parametrize("temperature", [0.0, 1.5])
def test_banned_tokens_never_appear(
    temperature: float, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Not even where they are biased, nor where only one token is left."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    sbd.end_of_text_ids = ()
    cases = {
        "half": tuple(range(0, 300, 2)),
        "all but one": tuple(token_id for token_id in range(300) if token_id != 77),
    }
    for banned in cases.values():
        settings = DecodingSettings(
            method="sbd",
            banned_tokens=banned,
            logit_bias={banned[5]: 1e9, banned[6]: 1e9},
            block_size=6,
            max_new_tokens=15,
            temperature=temperature,
            repetition_penalty=0.5,
            sampler=SOME,
        )
        rows = [replace(settings, method=method) for method in ("sbd", "exact", "ntp")]
        for generation in answers(sbd, prompts, rows):
            assert not set(banned) & set(generation.token_ids)
            assert generation.num_tokens == 15
            assert all(math.isfinite(entropy) for entropy in generation.entropy)


def test_banning_everything_is_an_error(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer)
    assert sbd.sbd_config is not None
    sbd.end_of_text_ids = (0,)
    mask = sbd.sbd_config.mask_token_id
    most = [token_id for token_id in range(300) if token_id not in (0, mask)]
    for fields, message in (
        ({"banned_tokens": range(300)}, "banned_tokens must leave the model a token, not ban all 300"),
        ({"banned_tokens": [0, *most]}, "banned_tokens must leave the model a token, not ban all 300"),
        (
            {"banned_tokens": most, "min_new_tokens": 1},
            "banned_tokens must leave the model a token that does not end the answer before min_new_tokens",
        ),
        ({"banned_tokens": most[1:], "min_new_tokens": 1, "stop_token_ids": most[:1]}, "that does not end the answer"),
    ):
        with pytest.raises(ParameterError, match=message) as error:
            static_batch(sbd, prompts[:1], [DecodingSettings(**fields)])
        assert "\n" not in str(error.value)
    alone = answers(sbd, prompts[:1], [DecodingSettings(method="sbd", banned_tokens=most, max_new_tokens=9)])[0]
    assert alone.token_ids == [0]
    assert alone.text == ""


@given(st.floats(0.01, 100.0), st.floats(-20, 20), st.integers(0, 10**6))
def test_every_logit_is_as_transformers_processors_make_it(penalty: float, bias: float, seed: int) -> None:
    """Also of tokens that a greedy choice never looks at; of the last token before an end is allowed, and the next."""
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randn(1, 1, 30, generator=generator).expand(1, 2, 30) * 5
    prompt = torch.randint(30, (6,), generator=generator)
    settings = DecodingSettings(
        method="sbd", repetition_penalty=penalty, logit_bias={3: bias, 4: -bias}, banned_tokens=(5, 6), min_new_tokens=2
    )
    params = RequestParams(settings, block_size=1, prompt_length=5, limit=9, ends=(0, 9))
    rules = logit_rules([params], Columns.of([params], device=torch.device("cpu")), vocab_size=30)
    state = open_state([prompt.tolist()], [params], sbd_config=None, device=torch.device("cpu"))
    positions = torch.tensor([[6, 7]])
    ours = rules.apply(state, Logits(logits, positions, positions > 0, read_best(logits, positions), width=2)).logits
    expected = SequenceBiasLogitsProcessor({(3,): bias, (4,): -bias})(prompt[None], logits[0, :1])
    expected = RepetitionPenaltyLogitsProcessor(penalty)(prompt[None], expected)
    expected[:, [5, 6]] = -torch.inf
    torch.testing.assert_close(ours[0, 1:], expected)
    expected[:, [0, 9]] = -torch.inf
    torch.testing.assert_close(ours[0, :1], expected)


def survivors_by_transformers(logits: torch.Tensor, top_k: int, top_p: float, min_p: float) -> torch.Tensor:
    if top_k:
        logits = TopKLogitsWarper(top_k)(None, logits)
    if top_p < 1:
        logits = TopPLogitsWarper(top_p)(None, logits)
    if min_p > 0:
        logits = MinPLogitsWarper(min_p)(None, logits)
    return logits.isfinite()


CUTS = st.tuples(
    st.one_of(st.just(0), st.integers(1, 40)),
    st.one_of(st.just(1.0), st.floats(0.001, 0.999)),
    st.one_of(st.just(0.0), st.floats(0.001, 1.0)),
)


@given(st.lists(CUTS, min_size=1, max_size=3), st.integers(0, 10**6), st.floats(0.1, 4.0))
def test_the_cuts_are_transformers_warpers(cuts: list[tuple[int, float, float]], seed: int, scale: float) -> None:
    """The same tokens stay, one after the other top-k, top-p and min-p, each row by its own."""
    logits = torch.randn(len(cuts), 2, 30, generator=torch.Generator().manual_seed(seed)) * scale
    logits[..., 7] = -torch.inf  # banned
    settings = [DecodingSettings(method="sbd", temperature=1.0, top_k=k, top_p=p, min_p=m) for k, p, m in cuts]
    draws = draws_of(settings, columns_of(settings), vocab_size=30)
    ours = cut(logits, draws)
    for row, (top_k, top_p, min_p) in enumerate(cuts):
        exactly = logits[row].double()
        # Away from where rounding decides
        after_k = exactly if not top_k else TopKLogitsWarper(top_k)(None, exactly)
        ordered = after_k.sort(descending=True, dim=-1).values.softmax(dim=-1)
        assume(bool(((ordered.cumsum(dim=-1) - top_p).abs() > 1e-5).all()) or top_p == 1)
        after_p = after_k if top_p == 1 else TopPLogitsWarper(top_p)(None, after_k)
        ratio = after_p.softmax(dim=-1) / after_p.softmax(dim=-1).amax(dim=-1, keepdim=True)
        assume(bool(((ratio - min_p).abs() > 1e-5)[ratio < 1].all()))
        expected = survivors_by_transformers(exactly, top_k, top_p, min_p)
        assert torch.equal(ours[row].isfinite(), expected)
        assert torch.equal(ours[row][expected], logits[row][expected])


def test_draws_with_cuts_follow_what_is_left(trained_tokenizer: PreTrainedTokenizerBase) -> None:
    """Chi-square of a prefill's token over 2,000 seeds, by the model's own distribution."""
    sbd = tiny_sbd("llama", trained_tokenizer)
    prompt, count = [20, 30, 40], 2000
    with torch.no_grad():
        logits = sbd.model(input_ids=torch.tensor([prompt])).logits[0, -1]
    assert sbd.sbd_config is not None
    logits[sbd.sbd_config.mask_token_id] = -torch.inf
    settings = DecodingSettings(method="ntp", max_new_tokens=1, temperature=2.5, top_k=9, top_p=0.9, min_p=0.02)
    warped = TopPLogitsWarper(0.9)(None, TopKLogitsWarper(9)(None, logits[None] / 2.5))
    expected = MinPLogitsWarper(0.02)(None, warped)[0].softmax(dim=-1).double() * count
    batch = decoded(sbd, [prompt] * count, [replace(settings, seed=seed) for seed in range(count)])
    counts = torch.bincount(batch.state.tokens[:, len(prompt)], minlength=300)
    left = expected > 0
    assert 3 < int(left.sum()) < 10
    assert int(counts[~left].sum()) == 0
    degrees = int(left.sum()) - 1
    assert float(((counts - expected) ** 2)[left].div(expected[left]).sum()) < degrees + 4 * math.sqrt(2 * degrees)
