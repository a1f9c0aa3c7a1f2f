"""Models with a recurrent state: the cache is put back to its settled position, and nothing of a wrong draft, a mask token or
padding is left in it."""

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor
from transformers import PreTrainedTokenizerBase

import answers
from families import MODES, RECURRENT, tiny_model
from measuring.plain import transformers_answer
from naive import full_logits, naive_decode
from running import Log, alone
from setblock.decoding.drafts.draft_length import DraftLength, DraftLengths, PassShape, RowDraft
from setblock.decoding.samplers import EntropyBounded, FixedCount
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.generate import generate_batch, stream
from setblock.engine.limits import EngineLimits
from setblock.engine.request import Request
from setblock.model.protocol.draft_text import indexed
from setblock.model.protocol.runtime import ModelInput
from setblock.model.runners.state_runner import MOST_REFED, StateRunner
from setblock.model.sbd_model import SBDModel

NEW = 45  # tokens; more than are fed again at most, so that states are kept


def recurrent_sbd(family: str, tokenizer: PreTrainedTokenizerBase, *, mode: str = "shifted") -> SBDModel:
    """A random model of a family with causal blocks."""
    sbd = SBDModel(tiny_model(family, vocab_size=len(tokenizer), initializer_range=0.2), tokenizer)
    sbd.prepare_for_training(block_sizes=range(2, 17), causal_block=True, **MODES[mode])
    sbd.end_of_text_ids = ()
    return sbd


@pytest.fixture(scope="module", params=RECURRENT)
def sbd(request: pytest.FixtureRequest, trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    return recurrent_sbd(request.param, trained_tokenizer)


@pytest.fixture(scope="module")
def wanted(sbd: SBDModel, prompts: list[list[int]]) -> list[list[int]]:
    """The answers of Transformers' `generate`."""
    mask = sbd.sbd_config.mask_token_id if sbd.sbd_config else None
    return [
        transformers_answer(sbd.model, prompt, max_new_tokens=NEW, eos_token_id=None, suppress_tokens=[mask])
        for prompt in prompts
    ]


def exact(**others: Any) -> DecodingSettings:
    return DecodingSettings(**({"method": "exact", "max_new_tokens": NEW, "block_size": 8} | others))


@pytest.fixture
def random_drafts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Choose drafts by chance, and so that each length occurs."""
    rng = random.Random(3)

    def chosen(self: DraftLengths, rows: Sequence[RowDraft], shape: PassShape) -> list[DraftLength]:
        return [DraftLength(rng.randint(0, len(row.reached)), rng.choice([0, row.size])) for row in rows]

    monkeypatch.setattr(DraftLengths, "choose", chosen)


@pytest.mark.parametrize("method", ["ntp", "exact"])
@pytest.mark.parametrize("drafts", ["fixed", "adaptive"])
def test_the_text_is_that_of_transformers(
    sbd: SBDModel, prompts: list[list[int]], wanted: list[list[int]], method: Any, drafts: Any
) -> None:
    """Alone, and in a batch of prompts of several lengths; by no more passes than plain decoding."""
    settings = exact(method=method, drafts=drafts)
    for count in (1, len(prompts)):
        found = generate_batch(sbd, prompts[:count], settings=settings)
        assert [each.token_ids for each in found] == wanted[:count]
        assert max(each.num_forwards for each in found) <= NEW


@pytest.mark.usefixtures("random_drafts")
def test_any_drafts_give_the_same_text(sbd: SBDModel, prompts: list[list[int]], wanted: list[list[int]]) -> None:
    """Copies from a text that has half of each answer, so that drafts are right to somewhere."""
    sbd.draft_text = indexed(answer[start : start + 9] for answer in wanted for start in range(0, NEW, 13))
    try:
        for lookup in (0, 2):
            found = generate_batch(sbd, prompts, settings=exact(prompt_lookup=lookup))
            assert [each.token_ids for each in found] == wanted
    finally:
        sbd.draft_text = None


@pytest.mark.usefixtures("longest_drafts")
def test_right_drafts_save_passes(sbd: SBDModel, prompts: list[list[int]], wanted: list[list[int]]) -> None:
    """Also those after a state was kept: passes that feed no block are few."""
    sbd.draft_text = indexed(wanted)
    try:
        found = generate_batch(sbd, prompts, settings=exact(prompt_lookup=2))
    finally:
        sbd.draft_text = None
    assert [each.token_ids for each in found] == wanted
    assert sum(each.num_forwards for each in found) < NEW * len(prompts) / 2


@pytest.mark.parametrize("temperature", [0.7, 1.5])
def test_the_draws_of_plain_decoding(sbd: SBDModel, prompts: list[list[int]], temperature: float) -> None:
    plain, ours = (
        generate_batch(sbd, prompts, settings=exact(method=method, temperature=temperature, seed=7))
        for method in ("ntp", "exact")
    )
    assert [each.token_ids for each in ours] == [each.token_ids for each in plain]


@pytest.mark.usefixtures("longest_drafts")
@pytest.mark.parametrize("mode", MODES)
def test_blocks_are_those_of_uncached_passes(
    mode: str, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Method `sbd`, over block sizes and limits of several lengths."""
    sampler = EntropyBounded(4.0)
    for family in RECURRENT:
        sbd = recurrent_sbd(family, trained_tokenizer, mode=mode)
        settings = [
            DecodingSettings(method="sbd", block_size=k, max_new_tokens=n, sampler=sampler)
            for k, n in ((8, 50), (5, 41), (16, 60))
        ]
        batch = answers.decoded(sbd, prompts, settings)
        for row, (prompt, each) in enumerate(zip(prompts, settings, strict=True)):
            token_ids, passes = naive_decode(sbd, prompt, each, sampler=sampler, forward=full_logits)
            generation = batch.generation(row)
            assert generation.token_ids == token_ids
            # A pass that feeds no block keeps a state, and each such pass commits `MOST_REFED` tokens or more
            assert passes <= generation.passes.decoding <= passes + each.max_new_tokens // MOST_REFED


def test_prompts_in_parts(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    """Each part's state is kept, in a batch and under an engine's budget."""
    sbd = recurrent_sbd("lfm2", trained_tokenizer)
    settings = exact(max_new_tokens=12)
    plain = [each.token_ids for each in generate_batch(sbd, prompts, settings=exact(method="ntp", max_new_tokens=12))]
    for chunk in (1, 7, 16):
        found = generate_batch(sbd, prompts, settings=replace(settings, prefill_chunk=chunk))
        assert [each.token_ids for each in found] == plain
        engine = Engine(sbd, EngineLimits(max_num_batched_tokens=chunk, kv_tokens=256))
        for number, prompt in enumerate(prompts):
            engine.submit(Request(str(number), prompt, settings))
        log = Log().run(engine)
        generations = [log[str(number)].generation for number in range(len(prompts))]
        assert [each.token_ids for each in generations if each] == plain


@pytest.mark.usefixtures("longest_drafts")
def test_a_mask_token_that_is_no_number(trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]) -> None:
    """Plain decoding never feeds it, so it must not reach the tokens that a pass checks."""
    sbd = recurrent_sbd("falcon_h1", trained_tokenizer)
    assert sbd.sbd_config is not None
    plain = generate_batch(sbd, prompts, settings=exact(method="ntp"))
    sbd.model.get_input_embeddings().weight.data[sbd.sbd_config.mask_token_id] = float("nan")
    found = generate_batch(sbd, prompts, settings=exact(prompt_lookup=2))
    assert [each.token_ids for each in found] == [each.token_ids for each in plain]


def test_a_stream_is_the_answer(sbd: SBDModel, prompts: list[list[int]], wanted: list[list[int]]) -> None:
    prompt = sbd.tokenizer.decode(prompts[1])
    chunks = list(stream(sbd, prompt, settings=exact(), raw=True))
    generation = chunks[-1].generation
    assert generation is not None
    assert "".join(chunk.text for chunk in chunks) == generation.text


def test_passes_are_bounded(sbd: SBDModel, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """However wrong drafts are: known tokens are fed again, but not more and more of them."""
    from setblock.model.runners import state_runner

    seen = list[int]()
    run = state_runner.logits_at

    def counting(*args: Any, **named: Any) -> Tensor:
        seen.append(named["input_ids"].shape[1])
        return run(*args, **named)

    monkeypatch.setattr(state_runner, "logits_at", counting)
    size = 8
    generate_batch(sbd, prompts[:1], settings=exact(drafts="fixed", max_new_tokens=100, block_size=size))
    assert max(seen[1:]) <= 2 * MOST_REFED + 2 * size + 1
    assert len(seen) <= 101


@pytest.mark.usefixtures("longest_drafts")
@pytest.mark.parametrize("wrong", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("seed", range(2))
def test_exact_takes_no_more_passes_than_plain_decoding(
    sbd: SBDModel, prompts: list[list[int]], wanted: list[list[int]], wrong: float, seed: int
) -> None:
    """Whatever share of the drafted tokens is wrong: each pass makes a token certain, also those that keep a state."""
    rng = random.Random(seed)
    other = sbd.vocab_size - 1
    sbd.draft_text = indexed([other if rng.random() < wrong else each for each in answer] for answer in wanted)
    try:
        found = generate_batch(sbd, prompts, settings=exact(prompt_lookup=2))
    finally:
        sbd.draft_text = None
    assert [each.token_ids for each in found] == wanted
    passes = [each.num_forwards for each in found]
    assert max(passes) <= NEW
    assert wrong or sum(passes) < NEW * len(passes) / 2


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("count", [1, 2, 8])
def test_blocks_take_few_passes_more(
    mode: str, count: int, trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    """Each pass of `sbd` reveals a token, except those that keep a state: one in `MOST_REFED` tokens, or in two blocks, if
    these are more. The prompt's pass reveals one where a block's first token is predicted by the one before it."""
    sbd = recurrent_sbd("lfm2", trained_tokenizer, mode=mode)
    assert sbd.sbd_config is not None
    for size in (4, 16):
        settings = DecodingSettings(method="sbd", block_size=size, max_new_tokens=85, sampler=FixedCount(count))
        for each in generate_batch(sbd, prompts, settings=settings):
            most = len(each.token_ids) + (not sbd.sbd_config.first_token_from_causal)
            most += len(each.token_ids) // max(MOST_REFED, 2 * size)
            assert each.num_forwards <= most
            assert count > 1 or each.num_forwards > most - 2  # the bound is reached


def test_the_engines_budget_counts_tokens_that_are_fed_again(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    sbd, budget = recurrent_sbd("lfm2", trained_tokenizer), 64
    engine, seen = Engine(sbd, EngineLimits(max_num_batched_tokens=budget, kv_tokens=1024)), list[int]()
    run = StateRunner.logits

    def counting(self: StateRunner, inputs: ModelInput) -> Tensor:
        assert inputs.plan.schedules is not None
        rows = zip(inputs.plan.rows.tolist(), inputs.plan.schedules, strict=True)
        seen.append(sum(each.tokens + self.refed(row, each.start) for row, each in rows))
        return run(self, inputs)

    monkeypatch.setattr(StateRunner, "logits", counting)
    for number, prompt in enumerate(prompts * 2):
        engine.submit(Request(str(number), prompt, exact(drafts="fixed")))
    Log().run(engine)
    assert budget // 2 < max(seen) <= budget


@pytest.mark.usefixtures("random_drafts")
@pytest.mark.parametrize("kv_tokens", [128, 400])
def test_the_engine(sbd: SBDModel, prompts: list[list[int]], wanted: list[list[int]], kv_tokens: int) -> None:
    """Requests that join, leave, and lose their cache where it is small."""
    engine, log = Engine(sbd, EngineLimits(max_num_seqs=3, kv_tokens=kv_tokens, page_tokens=4)), Log()
    requests = [
        Request(f"{number} {method}", prompt, exact(method=method))
        for number, prompt in enumerate(prompts)
        for method in ("exact", "ntp")
    ]
    blocks = DecodingSettings(method="sbd", block_size=6, max_new_tokens=40, sampler=EntropyBounded(4.0))
    requests.append(Request("sbd", prompts[0], blocks))
    for request in requests:
        engine.submit(request)
        log.add(engine.step())
        log.add(engine.step())
    log.run(engine)
    for request in requests[:-1]:
        generation = log[request.id].generation
        assert generation is not None
        assert generation.token_ids == wanted[int(request.id[0])]
    generation = log["sbd"].generation
    assert generation is not None
    assert generation.token_ids == alone(sbd, requests[-1]).token_ids
    assert engine.figures.prefix_hit_tokens == 0
    if kv_tokens == 128:
        assert engine.figures.preemptions > 0
