"""Drafts copied from the text: what is copied, that a copy never changes a text, and that it saves passes."""

import random
from collections import Counter
from collections.abc import Sequence

import pytest
import torch
from transformers import PreTrainedTokenizerBase

from answers import answers, decoded
from families import tiny_model, tiny_sbd
from measuring.static_batch import static_batch
from naive import _most_often, full_logits, naive_exact
from setblock.decoding.drafts.draft_length import DraftLength, DraftLengths, PassShape, RowDraft
from setblock.decoding.drafts.kinds import COPIED, ELSEWHERE, NUM_KINDS, PRIOR
from setblock.decoding.drafts.lookup import copied
from setblock.decoding.samplers import EntropyBounded
from setblock.decoding.settings.table import DecodingSettings
from setblock.engine.engine import Engine
from setblock.engine.offline import answered
from setblock.engine.request import Request
from setblock.errors import SetBlockError
from setblock.model.protocol.draft_text import LONGEST_MATCH, indexed
from setblock.model.sbd_model import SBDModel

NEW = 40

pytestmark = pytest.mark.usefixtures("longest_drafts")


def _longest(text: list[int]) -> tuple[int, int]:
    """How many tokens match, and where the latest of the longest matches ends; (0, 0) where nothing does."""
    best = (0, 0)
    for end in range(1, len(text)):
        matched = 0
        while matched < min(end, LONGEST_MATCH) and text[end - 1 - matched] == text[-1 - matched]:
            matched += 1
        if matched:
            best = max(best, (matched, end))
    return best


def test_a_copy_is_what_followed_the_longest_match() -> None:
    rng = random.Random(0)
    texts = [[rng.randrange(4) for _ in range(rng.randrange(1, 30))] for _ in range(300)]
    tokens = torch.tensor([text + [9] * (30 - len(text)) for text in texts])
    found = copied(tokens, torch.tensor([len(text) - 1 for text in texts]), size=8)
    for row, text in enumerate(texts):
        matched, end = _longest(text)
        assert found.matched[row] == matched
        if matched:
            expected = list(text)
            for place in range(end, end + 7):
                expected.append(expected[place])
            assert found.token_ids[row].tolist() == expected[len(text) - 1 :]


def test_a_match_at_the_very_end_continues_itself() -> None:
    tokens = torch.tensor([[1, 2, 3, 2, 3, 0, 0, 0]])
    assert copied(tokens, torch.tensor([4]), size=6).token_ids[0].tolist() == [3, 2, 3, 2, 3, 2]


def _level(others: list[int], end: int, *, length: int) -> int:
    """How often the token at `end` follows the `length` tokens before it, in eighths: c of n times is c / (n + 1)."""
    run = others[end - length : end]
    after = [others[place] for place in range(length, len(others)) if others[place - length : place] == run]
    return 8 * after.count(others[end]) // (len(after) + 1)


def test_another_text_is_copied_where_more_of_it_matches() -> None:
    """As the plain twin finds it: the longest match, continued as most often, and there last. Its kinds are how often each
    token follows what is before it there."""
    rng, where = random.Random(1), Counter[str]()
    for _ in range(60):
        others = [rng.randrange(4) for _ in range(rng.randrange(LONGEST_MATCH + 1, 60))]
        texts = [[rng.randrange(4) for _ in range(rng.randrange(1, 20))] for _ in range(10)]
        tokens = torch.tensor([text + [9] * (30 - len(text)) for text in texts])
        start = torch.tensor([len(text) - 1 for text in texts])
        own, found = copied(tokens, start, size=8), copied(tokens, start, size=8, others=indexed([others]))
        for row, text in enumerate(texts):
            matched, place = _most_often(others, text)
            if matched > own.matched[row]:
                where["others"] += 1
                after = (others[place:] + [others[-1]] * 8)[:7]
                assert found.matched[row] == matched
                assert found.token_ids[row].tolist() == [text[-1], *after]
                places = [min(place + step, len(others) - 1) for step in range(1, 7)]
                levels = [_level(others, each, length=min(each, LONGEST_MATCH)) for each in places]
                expected = [_level(others, place, length=matched), *levels]
                assert found.kinds[row, 1:].tolist() == [ELSEWHERE + level for level in expected]
            else:
                where["own"] += 1
                assert found.matched[row] == own.matched[row]
                assert found.token_ids[row].tolist() == own.token_ids[row].tolist()
                assert found.kinds[row].tolist() == own.kinds[row].tolist()
    assert min(where["others"], where["own"]) > 100


@pytest.fixture
def untrained(trained_tokenizer: PreTrainedTokenizerBase) -> SBDModel:
    model = tiny_model("llama", vocab_size=len(trained_tokenizer))
    sbd = SBDModel(model, trained_tokenizer)
    sbd.end_of_text_ids = ()
    return sbd


@pytest.mark.in_turn
@pytest.mark.parametrize("has_others", [False, True])
@pytest.mark.parametrize("lookup", [None, 0, 1, 2, 9])
@pytest.mark.parametrize("temperature", [0.0, 0.6])
def test_a_model_that_was_never_trained_decodes_exactly(
    untrained: SBDModel, prompts: list[list[int]], lookup: int | None, temperature: float, has_others: bool
) -> None:
    if has_others:
        untrained.draft_text = indexed(prompts)
    shared = {"max_new_tokens": NEW, "temperature": temperature, "seed": 3}
    exact = [DecodingSettings(method="exact", prompt_lookup=lookup, block_size=k, **shared) for k in (1, 8, 16)]
    plain = answers(untrained, prompts, [DecodingSettings(method="ntp", **shared)] * 3)
    ours = answers(untrained, prompts, exact)
    assert [each.token_ids for each in ours] == [each.token_ids for each in plain]
    assert all(each.passes.decoding <= NEW for each in ours), "never more passes than tokens"
    requests = [Request(str(i), prompt, each) for i, (prompt, each) in enumerate(zip(prompts, exact, strict=True))]
    of_engine = dict(answered(Engine(untrained), requests))
    assert [of_engine[str(i)].token_ids for i in range(3)] == [each.token_ids for each in plain]
    assert [of_engine[str(i)].passes.decoding for i in range(3)] == [each.passes.decoding for each in ours]


def test_text_that_repeats_itself_takes_few_passes(untrained: SBDModel, prompts: list[list[int]]) -> None:
    """A model whose logits are the same everywhere writes one token again and again."""
    with torch.no_grad():
        untrained.model.get_output_embeddings().weight.zero_()
    settings = DecodingSettings(method="exact", block_size=8, max_new_tokens=NEW)
    (answer,) = answers(untrained, [prompts[0]], [settings])
    assert answer.num_tokens == NEW
    assert answer.passes.decoding <= 3 + NEW // 8


def test_drafts_that_are_refused_are_learned_of_all_the_same(untrained: SBDModel, prompts: list[list[int]]) -> None:
    """They are not checked. But the next pass shows whether the refused token was right."""
    with torch.no_grad():
        untrained.model.get_output_embeddings().weight.zero_()
    untrained.draft_lengths = lengths = NoDrafts()
    batch = static_batch(untrained, prompts, [DecodingSettings(method="exact", block_size=8, max_new_tokens=60)] * 3)
    batch.run()
    assert all(batch.generation(row).drafted == 0 for row in range(3))
    assert lengths.right.values(NUM_KINDS, lambda kind, before: PRIOR[kind])[COPIED + 3] > 0.8 > PRIOR[COPIED + 3]


class NoDrafts(DraftLengths):
    def choose(self, rows: Sequence[RowDraft], shape: PassShape) -> list[DraftLength]:
        return [DraftLength(0, 0)] * len(rows)


def test_an_answer_that_another_text_has_takes_few_passes(untrained: SBDModel, prompts: list[list[int]]) -> None:
    shared = {"max_new_tokens": NEW, "temperature": 0.6}  # random, so that it repeats nothing of itself
    plain = answers(untrained, prompts, [DecodingSettings(method="ntp", **shared)] * len(prompts))
    exact = [DecodingSettings(method="exact", block_size=8, **shared)] * len(prompts)
    alone = answers(untrained, prompts, exact)
    untrained.draft_text = indexed([*prompt, *each.token_ids] for prompt, each in zip(prompts, plain, strict=True))
    ours = answers(untrained, prompts, exact)
    assert [each.token_ids for each in ours] == [each.token_ids for each in plain]
    for each, without in zip(ours, alone, strict=True):
        assert each.passes.decoding <= 3 + NEW // 8 < without.passes.decoding


def test_a_model_that_drafts_itself_uses_a_draft_text_as_well(
    trained_tokenizer: PreTrainedTokenizerBase, prompts: list[list[int]]
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer)
    sbd.end_of_text_ids = ()
    exact = [DecodingSettings(method="exact", block_size=8, max_new_tokens=NEW, temperature=0.6)] * len(prompts)
    alone = answers(sbd, prompts, exact)
    sbd.draft_text = indexed([*prompt, *each.token_ids] for prompt, each in zip(prompts, alone, strict=True))
    ours = answers(sbd, prompts, exact)
    assert [each.token_ids for each in ours] == [each.token_ids for each in alone]
    assert all(each.passes.decoding < other.passes.decoding for each, other in zip(ours, alone, strict=True))


def test_blocks_that_nothing_checks_are_refused(untrained: SBDModel, prompts: list[list[int]]) -> None:
    with pytest.raises(SetBlockError, match="use method 'exact' or 'ntp'"):
        answers(untrained, prompts[:1], [DecodingSettings(method="sbd", max_new_tokens=4)])


@pytest.mark.in_turn
@pytest.mark.parametrize("has_others", [False, True])
@pytest.mark.parametrize("lookup", [1, 2])
@pytest.mark.parametrize("mode", ["unshifted", "shifted"])
def test_copies_and_blocks_together_are_the_plain_twins(
    trained_tokenizer: PreTrainedTokenizerBase,
    prompts: list[list[int]],
    mode: str,
    lookup: int,
    has_others: bool,
) -> None:
    sbd = tiny_sbd("llama", trained_tokenizer, mode=mode)
    if has_others:
        rng = random.Random(0)
        sbd.draft_text = indexed([*each, *(rng.randrange(sbd.vocab_size) for _ in range(300))] for each in prompts)
    settings = [
        DecodingSettings(
            method="exact",
            sampler=EntropyBounded(4.0),
            prompt_lookup=lookup,
            block_size=size,
            max_new_tokens=24,
        )
        for size in (8, 5, 16)
    ]
    batch = decoded(sbd, prompts, settings)
    for row, (prompt, each) in enumerate(zip(prompts, settings, strict=True)):
        token_ids, count = naive_exact(sbd, prompt, each, sampler=EntropyBounded(4.0), forward=full_logits)
        assert batch.generation(row).token_ids == token_ids
        assert batch.generation(row).passes.decoding == count
