"""Blocks as the vLLM plugin keeps them: what `setblock.generate` gives, in as many passes, whatever shares the batch."""

import math
import random
import warnings
from dataclasses import replace
from typing import Any, Literal

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import reciting
from decoding.samplers.cases import EXAMPLES
from families import FAMILIES, MODES, tiny_sbd
from measuring.synchronisations import as_on_an_accelerator
from measuring.tape import Tape
from setblock.decoding.samplers import (
    EntropyBounded,
    Factor,
    FixedCount,
    Sampler,
)
from setblock.decoding.settings.table import DecodingSettings
from setblock.errors import SetBlockWarning
from setblock.model.protocol.draft_text import indexed
from setblock.model.sbd_model import SBDModel
from setblock_vllm.plugin import STOCK
from slot_engine import generated, serve

Noise = Literal["mask", "uniform"]

SAMPLERS: list[Sampler] = [
    EntropyBounded(4.0),
    EntropyBounded(0.0),
    EntropyBounded(math.inf),
    Factor(2.0),
    EXAMPLES["klass"](threshold=0.3, max_kl=2.0, passes=1),
    EXAMPLES["credit-decoding"](threshold=0.6),
    EXAMPLES["dilated"](4),
    FixedCount(3),
]


def of(sampler: Sampler, **changes: object) -> DecodingSettings:
    return replace(DecodingSettings(method="sbd", sampler=sampler, block_size=8, max_new_tokens=21), **changes)


def causal(tokenizer: PreTrainedTokenizerBase, noise: Noise) -> SBDModel:
    sbd = tiny_sbd("llama", tokenizer, mode="shifted")
    sbd.sbd_config = None
    sbd.prepare_for_training(block_sizes=range(2, 17), logit_shift=True, noise=noise, causal_block=True)
    return sbd


@pytest.mark.in_turn
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_requests_that_come_one_by_one_get_what_generate_gives(
    method: str, mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    settings = [
        of(sampler, method=method, block_size=size, temperature=temperature, seed=size)
        for sampler, size, temperature in zip(
            SAMPLERS, (8, 5, 16, 1, 7, 8, 8, 3), (0, 0.7, 0, 1, 0, 0.5, 0, 0), strict=True
        )
    ]
    rows = [prompts[i % 3] for i in range(len(settings))]
    expected = [generated(sbd, prompt, each) for prompt, each in zip(rows, settings, strict=True)]
    for chunk in (1000, 7):  # of a prompt in a pass
        assert [(each.token_ids, each.passes) for each in serve(sbd, rows, settings, chunk=chunk)] == expected


@pytest.mark.parametrize("method", ["sbd", "exact"])
@pytest.mark.parametrize("room", [0, 3])
def test_commits_are_passes_of_their_own_where_a_block_does_not_fit_behind_them(
    room: int, method: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """As under load. A block of method `sbd` is never fed in part: its tokens would see less than they should."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = [of(sampler, method=method, block_size=8) for sampler in SAMPLERS]
    rows = [prompts[i % 3] for i in range(len(settings))]
    served = serve(sbd, rows, settings, most=8 + room)
    more = 0
    for prompt, each, found in zip(rows, settings, served, strict=True):
        token_ids, passes = generated(sbd, prompt, each)
        assert found.token_ids == token_ids
        more += found.passes - passes
    assert more > 0 or method == "exact", "short drafts leave room"


@pytest.mark.parametrize("most", [1, 2, 5])
def test_exact_drafts_are_as_long_as_there_is_room(
    most: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Down to a token a pass, which is plain decoding."""
    answer = [*range(20, 51), 0]
    sbd = reciting(trained_tokenizer, answer, after=len(prompts[0]))
    (served,) = serve(sbd, [prompts[0]], [of(EntropyBounded(math.inf), method="exact", max_new_tokens=40)], most=most)
    assert served.token_ids == answer
    assert served.passes <= {1: 32, 2: 24, 5: 13}[most]


@pytest.mark.in_turn
@pytest.mark.parametrize("noise", ["mask", "uniform"])
@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_causal_blocks_are_committed_with_the_next_one(
    method: str, noise: Noise, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """In as many passes as `generate` takes, but for the last commit; and where passes are cut short, too."""
    sbd = causal(trained_tokenizer, noise)
    sbd.end_of_text_ids = ()
    settings = [
        of(sampler, method=method, block_size=size, temperature=temperature, seed=size)
        for sampler, size, temperature in zip(
            SAMPLERS, (8, 5, 16, 1, 7, 8, 8, 3), (0, 0.7, 8, 1, 0, 15, 0, 0), strict=True
        )
    ]
    rows = [prompts[i % 3] for i in range(len(settings))]
    expected = [generated(sbd, prompt, each) for prompt, each in zip(rows, settings, strict=True)]
    assert [(served.token_ids, served.passes) for served in serve(sbd, rows, settings)] == expected
    if method != "sbd":
        for how in ({"budgets": random.Random(1)}, {"context": [120] * 8}, {"interrupt": frozenset({3, 6})}):
            found = [served.token_ids for served in serve(sbd, rows, settings, **how)]
            assert found == [token_ids for token_ids, _ in expected]


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_what_requests_ask_of_the_logits_is_done(
    method: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Penalties, biases, banned tokens and minimum lengths come from the core. Ids that the model has not
    change nothing."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    free, _ = generated(sbd, prompts[0], of(EntropyBounded(3.0), method=method))
    sbd.end_of_text_ids = (free[2],)
    changes: list[dict[str, object]] = [
        {"repetition_penalty": 1.7},
        {"logit_bias": {free[0]: -1e9, free[1]: 5.0}, "temperature": 0.8},
        {"banned_tokens": tuple(free[:4])},
        {"min_new_tokens": 7},
        {"min_new_tokens": 21},
    ]
    settings = [of(EntropyBounded(3.0), method=method, **each) for each in changes]
    rows = [prompts[n % 3] for n in range(len(settings))]
    strange = [replace(each, banned_tokens=(*each.banned_tokens, 10**6)) for each in settings]
    for prompt, each, served in zip(rows, settings, serve(sbd, rows, strange), strict=True):
        token_ids, passes = generated(sbd, prompt, each)
        assert served.token_ids == token_ids
        assert served.passes == passes
        assert len(served.token_ids) >= each.min_new_tokens


@pytest.mark.parametrize("seed", [1, 3, 5])
def test_exact_is_next_token_decoding_where_blocks_are_cut_short(
    seed: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """A pass of vLLM has a budget of tokens; what it lets through of a draft is checked, committed and handed over. At high
    temperatures noise decides, so that drafts are right for a while, and then wrong."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = [of(EntropyBounded(3.0), method="exact", temperature=t, seed=3) for t in (0.0, 0.8, 1.0)]
    settings += [of(EntropyBounded(99.0), method="exact", temperature=t, seed=s) for t in (8.0, 15.0) for s in range(4)]
    rows = [prompts[n % 3] for n in range(len(settings))]
    for prompt, each, served in zip(
        rows, settings, serve(sbd, rows, settings, budgets=random.Random(seed)), strict=True
    ):
        assert served.token_ids == generated(sbd, prompt, replace(each, method="ntp"))[0]


@pytest.mark.parametrize("family", ["qwen2", "qwen3", "mixtral", "qwen3_moe"])
def test_other_architectures(family: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    sbd = tiny_sbd(family, trained_tokenizer, mode="shifted")
    settings = [of(EntropyBounded(3.0)), of(EntropyBounded(3.0), method="exact"), of(EntropyBounded(0.5))]
    for prompt, each, served in zip(prompts, settings, serve(sbd, prompts, settings), strict=True):
        assert (served.token_ids, served.passes) == generated(sbd, prompt, each)


def test_every_architecture_of_the_plugin_is_tested() -> None:
    names = {name.removesuffix("ForCausalLM").lower() for name in STOCK}
    assert names <= {name.replace("_", "") for name in FAMILIES}


@pytest.mark.parametrize("method", ["sbd", "exact"])
def test_an_end_of_text_ends_the_answer(
    method: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """At every place of a block, and as the token that corrects a draft."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = of(EntropyBounded(3.0), method=method)
    whole, _ = generated(sbd, prompts[1], settings)
    for token_id in dict.fromkeys(whole):
        sbd.end_of_text_ids = (token_id,)
        token_ids, passes = generated(sbd, prompts[1], settings)
        (served,) = serve(sbd, [prompts[1]], [settings])
        assert served.token_ids == token_ids
        assert served.passes == passes
        assert token_id in token_ids[-1:] or len(token_ids) == 21


def test_exact_is_next_token_decoding_where_blocks_run_past_the_limit(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """vLLM feeds whole blocks, also where an answer may only be a few tokens longer."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = [of(EntropyBounded(3.0), method="exact", temperature=t, seed=3) for t in (0.0, 0.8, 1.0)]
    for prompt, each, served in zip(prompts, settings, serve(sbd, prompts, settings, context=[120] * 3), strict=True):
        assert served.token_ids == generated(sbd, prompt, replace(each, method="ntp"))[0]


@pytest.mark.parametrize("method", ["sbd", "exact", "ntp"])
def test_interrupted_requests_go_on_where_they_were(
    method: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = [of(EntropyBounded(3.0), method=method, temperature=t, seed=5) for t in (0.0, 0.9, 0.0)]
    interrupted = serve(sbd, prompts, settings, interrupt=frozenset({3, 6, 11}))
    for prompt, each, served in zip(prompts, settings, interrupted, strict=True):
        assert served.token_ids == generated(sbd, prompt, each)[0]


@pytest.mark.parametrize("causal_block", [False, True])
def test_right_drafts_take_one_pass_each(
    causal_block: bool, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    answer = [*range(20, 51), 0]  # 32 tokens: four blocks
    sbd = reciting(trained_tokenizer, answer, after=len(prompts[0]))
    assert sbd.sbd_config is not None
    sbd.sbd_config = replace(sbd.sbd_config, causal_block=causal_block)
    settings = of(EntropyBounded(math.inf), method="exact", max_new_tokens=40)
    (served,) = serve(sbd, [prompts[0]], [settings])
    assert served.token_ids == answer
    assert served.passes == 5, "the last one hands the last block over"


@pytest.mark.parametrize("prompt_lookup", [None, 1])
def test_drafts_are_copied_from_a_draft_text_as_everywhere(
    prompt_lookup: int | None, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = of(EntropyBounded(math.inf), method="exact", prompt_lookup=prompt_lookup)
    alone = [generated(sbd, prompt, settings) for prompt in prompts]
    sbd.draft_text = indexed([*prompt, *token_ids] for prompt, (token_ids, _) in zip(prompts, alone, strict=True))
    expected = [generated(sbd, prompt, settings) for prompt in prompts]
    assert [each.passes for each in serve(sbd, prompts, [settings] * 3)] == [passes for _, passes in expected]
    assert [token_ids for token_ids, _ in expected] == [token_ids for token_ids, _ in alone]
    assert sum(passes for _, passes in expected) < sum(passes for _, passes in alone)


class CountedTape(Tape):
    """A tape that counts."""

    captures = replays = 0

    def capture(self, run: Any) -> Any:
        CountedTape.captures += 1
        return super().capture(run)

    def replay(self) -> None:
        CountedTape.replays += 1
        super().replay()


@pytest.mark.in_turn
@pytest.mark.parametrize("causal_block", [False, True])
def test_captured_steps_give_what_others_give(
    causal_block: bool, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Requests of all kinds that come, go and are preempted, some of which can't be captured. No step reads a value."""
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    assert sbd.sbd_config is not None
    sbd.sbd_config = replace(sbd.sbd_config, causal_block=causal_block)
    sbd.draft_text = indexed(prompts)
    kinds: list[dict[str, Any]] = [
        {"method": "exact"},
        {"method": "exact", "temperature": 0.8, "seed": 3, "block_size": 5},
        {"method": "ntp", "temperature": 1.0, "top_p": 0.9},
        {"method": "exact", "prompt_lookup": 1, "repetition_penalty": 1.2},
        {"method": "exact", "banned_tokens": (7,), "max_new_tokens": 9},
        *([] if causal_block else [{}, {"temperature": 0.7}]),
    ]
    settings = [of(sampler, **each) for sampler in (EntropyBounded(1.5), FixedCount(3)) for each in kinds]
    rows = [prompts[i % 3] for i in range(len(settings))]
    expected = [generated(sbd, prompt, each) for prompt, each in zip(rows, settings, strict=True)]
    CountedTape.captures = CountedTape.replays = 0
    with as_on_an_accelerator(), warnings.catch_warnings():
        warnings.simplefilter("error")  # no capture is given up
        found = serve(sbd, rows, settings, recorder=CountedTape)
        assert [(each.token_ids, each.passes) for each in found] == expected
        interrupted = serve(sbd, rows, settings, recorder=CountedTape, interrupt=frozenset({4, 9}))
        assert [each.token_ids for each in interrupted] == [token_ids for token_ids, _ in expected]
    assert CountedTape.replays > 2 * CountedTape.captures > 0


def test_a_step_that_can_not_be_captured_runs_as_before(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    settings = [of(EntropyBounded(1.5), method=method) for method in ("exact", "sbd", "ntp")]
    expected = [generated(sbd, prompt, each)[0] for prompt, each in zip(prompts, settings, strict=True)]

    class Refusing(Tape):
        left = 0

        def capture(self, run: Any) -> Any:
            if Refusing.left == 0:
                raise RuntimeError("it can't be captured here")
            Refusing.left -= 1
            return super().capture(run)

    for left in (0, 1):  # what is before the model is refused, and what is after it
        Refusing.left = left
        with as_on_an_accelerator(), pytest.warns(SetBlockWarning, match="one operation after the other: it can't"):
            assert [each.token_ids for each in serve(sbd, prompts, settings, recorder=Refusing)] == expected


def test_logits_that_are_not_numbers_hold_nothing_up(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode="shifted")
    with torch.no_grad():
        sbd.model.get_output_embeddings().weight.fill_(math.nan)
    sbd.end_of_text_ids = ()
    (served,) = serve(sbd, [prompts[0]], [of(EntropyBounded(1.0))])
    assert len(served.token_ids) == 21
